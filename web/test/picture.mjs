// Takes the picture of the explorer for the README: node picture.mjs PYTHON RUN FILE
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { episodesDone, launch } from "./browser.mjs";

// Two skills of the walker, each with one foot mostly on the ground, at a moment when both are in stride.
const VIEW = process.env.VIEW ?? "#a=0~0.2,0.9~0&b=0~0.8,0.2~0&t=1.2";

const [python, run, file] = process.argv.slice(2);
const server = spawn(python, ["-m", "qdac", "explore", run, "--no-browser", "--port", "0"], { stdio: ["ignore", "inherit", "pipe"] });
try {
  let address;
  for await (const line of createInterface({ input: server.stderr })) {
    address = line.match(/http:\S+/)?.[0];
    if (address) break;
    console.error(line);
  }
  if (!address) throw new Error("qdac explore did not start");
  const browser = await launch();
  const page = await browser.newPage({ viewport: { width: 1280, height: 720 } });
  await page.goto(address + VIEW);
  await episodesDone(page, VIEW.includes("&b=") ? 2 : 1);
  await page.waitForTimeout(1000);
  await page.screenshot({ path: file });
  await browser.close();
} finally {
  server.kill("SIGINT");
}
