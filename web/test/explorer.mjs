// Uses the page as a visitor does: node explorer.mjs ADDRESS COPY [FOLDER FOR SCREENSHOTS]
// The runs at ADDRESS: two of one task, then four numbers, a circle, one number, and a task without a robot.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { episodesDone, launch } from "./browser.mjs";

const [address, copy, pictures] = process.argv.slice(2);
const browser = await launch();
const problems = [];
const requests = [];

process.on("exit", (code) => code && console.log("problems:", problems));

async function openPage(url) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 720 } });
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => requests.push(request.url()));
  await page.goto(url);
  await page.waitForSelector("body[data-ready]");
  await episodesDone(page, url.includes("&b=") ? 2 : 1);
  return page;
}

const hash = (page) => page.evaluate(() => location.hash);
const view = (page, pane = "a") => page.locator(`.pane-${pane} .stage`).screenshot();

// What the canvas holds right after the page drew it, while it plays: quicker than a screenshot.
const frame = (page, pane = "a") => page.evaluate((key) => new Promise((resolve) => {
  requestAnimationFrame(() => {
    const [view, copy] = [document.querySelector(`.pane-${key} .view`), document.createElement("canvas")];
    [copy.width, copy.height] = [160, 90];
    copy.getContext("2d").drawImage(view, 0, 0, 160, 90);
    resolve(copy.toDataURL());
  });
}), pane);

async function picture(page, name) {
  if (pictures) await page.screenshot({ path: `${pictures}/${name}.png` });
}

async function fits(page) {
  const size = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.scrollHeight, innerWidth, innerHeight]);
  assert.ok(size[0] <= size[2] && size[1] <= size[3], `the page is larger than the window: ${size}`);
  const over = await page.evaluate(() => {
    const boxes = [...document.querySelectorAll("#top, aside, .pane, #transport")].map((part) => part.getBoundingClientRect());
    return boxes.some((one, i) => boxes.slice(i + 1).some((other) =>
      one.left < other.right - 1 && other.left < one.right - 1 && one.top < other.bottom - 1 && other.top < one.bottom - 1));
  });
  assert.ok(!over, "parts of the page overlap");
}

// A busy machine draws late: waits until something holds, rather than for a while.
async function until(what, holds) {
  for (const start = Date.now(); Date.now() - start < 20_000; await new Promise((resolve) => setTimeout(resolve, 100))) {
    if (await holds()) return;
  }
  assert.fail(`waited 20 s in vain: ${what}`);
}

const step = async (name, action) => {
  const start = Date.now();
  await action();
  console.log(`${name}: ${Date.now() - start} ms`);
};

let page;
await step("load", async () => {
  page = await openPage(address);
  await fits(page);
  await picture(page, "load");
});
await step("the robot moves", async () => {
  const first = await view(page);
  await until("the robot moves", async () => !first.equals(await view(page)));
});
await step("space pauses", async () => {
  await page.keyboard.press("Space");
  let still = await view(page);
  await until("the robot stands still", async () => {
    const before = still;
    await page.waitForTimeout(300);
    still = await view(page);
    return still.equals(before);
  });
  await page.keyboard.press(".");
  await until("one frame on", async () => !still.equals(await view(page)));
});
await step("click a skill", async () => {
  const before = await hash(page);
  const box = await page.locator("#map").boundingBox();
  await page.mouse.click(box.x + box.width * 0.3, box.y + box.height * 0.5);
  await page.waitForFunction((old) => location.hash !== old, before);
  await page.waitForSelector('.pane-a[data-state="playing"], .pane-a[data-state="done"]');
  await episodesDone(page);
  const [x, y] = (await hash(page)).match(/~([\d.]+),([\d.]+)~/).slice(1).map(Number);
  assert.ok(x > 0.1 && x < 0.35 && y > 0.2 && y < 0.6, `a click in the left half asked for ${x}, ${y}`);
  assert.match(await page.textContent(".pane-a .skill"), new RegExp(x.toFixed(2)));
});
await step("drag", async () => {
  const before = await hash(page);
  const box = await page.locator("#map").boundingBox();
  await page.mouse.move(box.x + box.width * 0.4, box.y + box.height * 0.3);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.7, box.y + box.height * 0.2, { steps: 5 });
  await page.mouse.up();
  await episodesDone(page);
  assert.notEqual(await hash(page), before);
});
await step("keys", async () => {
  const before = await hash(page);
  await page.keyboard.press("ArrowLeft");
  await page.waitForFunction((old) => location.hash !== old, before);
  await page.keyboard.press("m");
  assert.match(await hash(page), /map=performance/);
  await page.keyboard.press("r");
  assert.match(await hash(page), /~1&/);
  await page.keyboard.press("?");
  assert.ok(await page.locator("#keys").isVisible());
  await page.keyboard.press("Escape");
  await page.focus("#sliders input");
  const middle = await hash(page);
  await page.keyboard.press("PageUp");
  await page.waitForFunction((old) => location.hash !== old, middle);
  await episodesDone(page);
});
await step("compare two runs", async () => {
  await page.click("#compare");
  await episodesDone(page, 2);
  assert.match(await hash(page), /a=0~.*&b=1~/);
  assert.equal(await page.locator(".pane").count(), 2);
  await fits(page);
  const texts = await page.locator(".pane .value").allTextContents();
  assert.equal(texts.length, 4);
  await until("two robots that differ", async () => await frame(page, "a") !== await frame(page, "b"));
  await picture(page, "compare");
});
await step("share a link", async () => {
  await page.click("#play");
  await page.locator("#scrub").fill("500");
  await page.click("#share");
  const link = page.url();
  assert.match(link, /&t=\d/);
  const other = await openPage(link);
  assert.deepEqual(await other.locator(".pane .skill").allTextContents(), await page.locator(".pane .skill").allTextContents());
  assert.deepEqual(await other.locator(".pane .run").evaluateAll((all) => all.map((one) => one.value)), ["0", "1"]);
  await until("both pages show the same moment", async () => await other.textContent("#time") === await page.textContent("#time"));
  await other.close();
});
await step("close the second pane", async () => {
  await page.keyboard.press("c");
  assert.equal(await page.locator(".pane").count(), 1);
});
for (const [run, name, sliders] of [[2, "four", 4], [3, "circle", 1], [4, "line", 1], [5, "feature", 2]]) {
  await step(`a space of another kind: ${name}`, async () => {
    await page.selectOption(".pane-a .run", String(run));
    await page.waitForFunction((index) => location.hash.startsWith(`#a=${index}~`), run);
    await episodesDone(page);
    await page.waitForFunction((count) => document.querySelectorAll("#sliders input").length === count, sliders);
    const before = await hash(page);
    const box = await page.locator("#map").boundingBox();
    await page.mouse.click(box.x + box.width * 0.45, box.y + box.height * 0.2);
    await page.waitForFunction((old) => location.hash !== old, before);
    await episodesDone(page);
    await fits(page);
    await picture(page, name);
  });
}
await step("a bad link shows the page all the same", async () => {
  const other = await openPage(`${address}#b=7&a=99~0.5,x~0&map=%&speed=7&t=-1`);
  await other.close();
});
await step("200 rapid clicks", async () => {
  await page.selectOption(".pane-a .run", "0");
  await episodesDone(page);
  await page.evaluate(() => {
    const map = document.getElementById("map");
    const box = map.getBoundingClientRect();
    map.setPointerCapture = () => {};
    map.hasPointerCapture = () => true;
    for (let i = 0; i < 200; i++) {
      const at = { clientX: box.left + 60 + (i * 7) % 200, clientY: box.top + 20 + (i * 11) % 200, button: 0, pointerId: 1 };
      map.dispatchEvent(new PointerEvent("pointerdown", at));
      map.dispatchEvent(new PointerEvent("pointerup", at));
    }
  });
  await episodesDone(page);
  const first = await frame(page);
  await until("the robot moves", async () => await frame(page) !== first);
});
await page.close();
assert.deepEqual(requests.filter((url) => !url.startsWith(address) && !url.startsWith("data:") && !url.startsWith("blob:")), []);

await step("the copy opens from disk", async () => {
  const url = pathToFileURL(copy).href;
  requests.length = 0;
  const disk = await openPage(url);
  await fits(disk);
  const [first, before] = [await frame(disk), await hash(disk)];
  const box = await disk.locator("#map").boundingBox();
  await disk.mouse.click(box.x + box.width * 0.25, box.y + box.height * 0.6);
  await disk.waitForFunction((old) => location.hash !== old, before);
  await episodesDone(disk);
  await until("another skill looks different", async () => await frame(disk) !== first);
  await disk.click("#compare");
  await episodesDone(disk, 2);
  const middle = await hash(disk);
  await disk.keyboard.press("ArrowRight");
  await disk.waitForFunction((old) => location.hash !== old, middle);
  assert.deepEqual(requests.filter((request) => !request.startsWith(url) && !request.startsWith("data:") && !request.startsWith("blob:")), []);
  await picture(disk, "copy");
});
await browser.close();
assert.deepEqual(problems, []);
