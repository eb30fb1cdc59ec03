// Builds the page into qdac/explore/static, or into the folder that is named: node build.mjs [FOLDER]
// One classic script, so that a static copy opens from disk.
import { copyFileSync, mkdirSync } from "node:fs";
import { build } from "esbuild";

const out = process.argv[2] ?? new URL("../qdac/explore/static", import.meta.url).pathname;
mkdirSync(out, { recursive: true });
await build({
  entryPoints: [new URL("src/main.ts", import.meta.url).pathname],
  outfile: `${out}/explorer.js`,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  legalComments: "inline",
  charset: "utf8",
});
for (const name of ["index.html", "explorer.css"]) {
  copyFileSync(new URL(`src/${name}`, import.meta.url).pathname, `${out}/${name}`);
}
