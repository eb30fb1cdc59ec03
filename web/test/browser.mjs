// Starts Debian's Chromium without a screen; WebGL is drawn in software.
import { chromium } from "playwright-core";

export function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
      "--disable-sync", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
    ],
  });
}

// Waits until every pane shows a whole episode.
export async function episodesDone(page, panes = 1) {
  await page.waitForFunction((count) => document.querySelectorAll('.pane[data-state="done"]').length === count, panes, { timeout: 60_000 });
}
