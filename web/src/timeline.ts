/** The features over time: blocks where they are 0 or 1 (contacts), lines where they are not. */

import { INK, LINE, MUTED, PANE_COLOURS, prepareCanvas } from "./colours";
import type { Episode } from "./episode";
import { format, shownRange, shownValues } from "./space";

export const ROW_HEIGHT = 40;
export const AXIS_HEIGHT = 18;
const LABEL_HEIGHT = 14;

export class Timeline {
  private span = 1;

  constructor(private readonly canvas: HTMLCanvasElement, private readonly pane: "a" | "b", seek: (seconds: number) => void) {
    const move = (event: PointerEvent) => {
      const box = canvas.getBoundingClientRect();
      seek(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * this.span);
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (canvas.hasPointerCapture(event.pointerId)) move(event);
    });
  }

  /** `span` is the time at the right edge, the same in both panes. */
  draw(episode: Episode, seconds: number, span: number): void {
    this.span = span;
    const { context, width, height } = prepareCanvas(this.canvas);
    const { space, step_seconds: step, is_real_time: isRealTime } = episode.run;
    const rowHeight = (height - AXIS_HEIGHT) / space.names.length;
    space.names.forEach((name, dim) => this.drawRow(context, episode, dim, name, dim * rowHeight, rowHeight, width));
    context.fillStyle = MUTED;
    const unit = isRealTime ? " s" : "";
    const last = isRealTime ? span : span / step;
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      context.textAlign = share === 0 ? "left" : share === 1 ? "right" : "center";
      context.fillText(format(share * last, isRealTime ? 1 : 1e3) + (share === 1 ? unit || " steps" : unit), share * width, height - 4);
    }
    const end = (episode.seconds / span) * width;
    if (episode.end === "terminated" && end < width - 60) {
      context.fillStyle = MUTED;
      context.textAlign = "left";
      context.fillText("episode ended", end + 5, LABEL_HEIGHT + 14, width - end - 8);
    }
    const x = Math.min(1, seconds / span) * width;
    context.strokeStyle = INK;
    context.lineWidth = 1.5;
    stroke(context, [[x, 0], [x, height - AXIS_HEIGHT]]);
  }

  private drawRow(context: CanvasRenderingContext2D, episode: Episode, dim: number, name: string, top: number, height: number, width: number): void {
    const colour = PANE_COLOURS[this.pane];
    const { space, step_seconds: step } = episode.run;
    const [chartTop, chartHeight] = [top + LABEL_HEIGHT, height - LABEL_HEIGHT - 4];
    const toX = (index: number) => ((index * step) / this.span) * width;
    const isBinary = space.kind === "box" && isZeroOrOne(episode, dim);
    const values = (data: Float32Array) => (index: number) => {
      const row = data.subarray(index * episode.featureSize, (index + 1) * episode.featureSize);
      return space.kind === "circle" ? shownValues(space, row)[0] : row[dim];
    };
    const [feature, mean] = [values(episode.features), values(episode.means)];
    const [low, high] = isBinary || space.kind === "circle" ? shownRange(space, dim) : dataRange(episode, dim, feature);
    const toY = (value: number) => chartTop + (1 - Math.min(1, Math.max(0, (value - low) / (high - low)))) * chartHeight;

    context.fillStyle = "#f5f7f9";
    context.fillRect(0, chartTop, width, chartHeight);
    context.fillStyle = MUTED;
    context.textAlign = "left";
    context.fillText(name, 0, top + 10, width * 0.7);
    if (isBinary) {
      context.fillStyle = `${colour}55`;
      for (const [from, to] of blocks(episode.steps, (index) => feature(index) > 0.5)) {
        context.fillRect(toX(from), chartTop, Math.max(0.6, toX(to) - toX(from)), chartHeight);
      }
    } else {
      context.strokeStyle = "#97a3b4";
      context.lineWidth = 1;
      polyline(context, episode.steps, toX, (index) => toY(feature(index)));
    }
    context.strokeStyle = INK;
    context.lineWidth = 1;
    context.setLineDash([4, 3]);
    const target = toY(shownValues(space, episode.skill)[dim]);
    stroke(context, [[0, target], [width, target]]);
    context.setLineDash([]);
    context.strokeStyle = colour;
    context.lineWidth = 2;
    polyline(context, episode.steps, toX, (index) => toY(mean(index)));
    context.strokeStyle = LINE;
    context.lineWidth = 1;
    context.strokeRect(0.5, chartTop + 0.5, width - 1, chartHeight - 1);
  }
}

function isZeroOrOne(episode: Episode, dim: number): boolean {
  for (let i = dim; i < episode.steps * episode.featureSize; i += episode.featureSize) {
    if (episode.features[i] !== 0 && episode.features[i] !== 1) return false;
  }
  return true;
}

/** The skill space's range, widened to what was seen. */
function dataRange(episode: Episode, dim: number, value: (index: number) => number): [number, number] {
  const [lowest, highest] = shownRange(episode.run.space, dim);
  const margin = (highest - lowest) / 2;
  let [low, high] = [lowest, highest];
  for (let index = 0; index < episode.steps; index++) {
    low = Math.min(low, Math.max(value(index), lowest - margin));
    high = Math.max(high, Math.min(value(index), highest + margin));
  }
  return [low, high];
}

function* blocks(count: number, isOn: (index: number) => boolean): Generator<[number, number]> {
  let from = -1;
  for (let index = 0; index <= count; index++) {
    const on = index < count && isOn(index);
    if (on && from < 0) from = index;
    if (!on && from >= 0) {
      yield [from, index];
      from = -1;
    }
  }
}

function polyline(context: CanvasRenderingContext2D, count: number, toX: (index: number) => number, toY: (index: number) => number): void {
  context.beginPath();
  for (let index = 0; index < count; index++) context.lineTo(toX(index), toY(index));
  context.stroke();
}

function stroke(context: CanvasRenderingContext2D, points: [number, number][]): void {
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.stroke();
}
