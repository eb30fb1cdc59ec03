// Takes the picture of the README: node picture.mjs ADDRESS FILE
import { episodesDone, launch } from "./browser.mjs";

const [address, file] = process.argv.slice(2);
const browser = await launch();
const page = await browser.newPage({ viewport: { width: 1280, height: 720 } });
await page.goto(address);
await episodesDone(page, address.includes("&b=") ? 2 : 1);
await page.waitForTimeout(1500);
await page.screenshot({ path: file });
await browser.close();
