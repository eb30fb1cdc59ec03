/** The skill space as a map: a strip, a plane, a plane of planes, or a dial. Shows where skills are, and picks one. */

import { EMPTY, INK, LINE, MUTED, PANE_COLOURS, prepareCanvas, viridis } from "./colours";
import { cellCentre, cellOf, cellStep, format, fromShown, heading, headingSkill, shortName, shownRange, shownValues } from "./space";
import type { MapMode, Run, Skill } from "./types";

export interface Marker {
  pane: "a" | "b";
  skill: Skill;
  observed: ArrayLike<number> | null;
  isActive: boolean;
}

export interface MapContent {
  run: Run;
  mode: MapMode;
  /** The lowest and the highest value of the colour scale. */
  limits: [number, number] | null;
  markers: Marker[];
  recorded: Skill[] | null;
}

interface Area {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Room for the axes and, below, the colour bar. */
const MARGIN = { left: 44, top: 10, right: 12, bottom: 76 };
const STRIP_HEIGHT = 64;
/** The coloured ring is between these shares of the dial's radius; the unit circle is in its middle. */
const RING = [0.66, 1];
const UNIT = (RING[0] + RING[1]) / 2;

/** The value of each cell, higher is better; null where there is none or the skill is missed. */
export function cellValues(run: Run, mode: MapMode): (number | null)[] {
  const table = run.evaluation;
  if (!table) return [];
  if (mode === "distance") return table.distance.map((value) => (value === null ? null : -value));
  return table.performance.map((value, i) => {
    const gap = table.distance[i];
    return gap !== null && gap < run.d_eval ? value : null;
  });
}

/** The colour scale of runs that are compared: up to 0 for distances, and never of zero width. */
export function commonLimits(runs: Run[], mode: MapMode): [number, number] | null {
  const values = runs.flatMap((run) => cellValues(run, mode)).filter((value): value is number => value !== null);
  if (!values.length) return null;
  const low = values.reduce((least, value) => Math.min(least, value));
  const high = mode === "distance" ? 0 : values.reduce((most, value) => Math.max(most, value));
  return high > low ? [low, high] : [low, low + 1];
}

export class SkillMap {
  private content: MapContent | null = null;
  private heat: HTMLCanvasElement | null = null;
  private heatKey = "";
  private shown = "";

  constructor(private readonly canvas: HTMLCanvasElement, private readonly pick: (skill: Skill, isFinal: boolean) => void) {
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      this.pickAt(event, false);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (canvas.hasPointerCapture(event.pointerId)) this.pickAt(event, false);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (canvas.hasPointerCapture(event.pointerId)) this.pickAt(event, true);
    });
  }

  /** Draws the space, unless nothing changed. */
  draw(content: MapContent): void {
    const { clientWidth, clientHeight } = this.canvas;
    const shown = [
      content.run.label, content.mode, clientWidth, clientHeight, window.devicePixelRatio,
      ...content.markers.map(({ pane, skill, observed, isActive }) => `${pane} ${skill} ${observed && Array.from(observed)} ${isActive}`),
    ].join();
    if (shown === this.shown && content.run === this.content?.run) return;
    this.shown = shown;
    this.content = content;
    const { context } = prepareCanvas(this.canvas);
    const area = this.area();
    this.drawHeat(context, area, content);
    if (content.run.space.kind === "circle") this.drawDialFrame(context, area, content.run);
    else this.drawAxes(context, area, content.run);
    if (content.limits && content.run.evaluation) this.drawColourBar(context, area, content);
    for (const skill of content.recorded ?? []) dot(context, ...this.place(area, content.run, skill), 3, "#ffffff", INK);
    for (const marker of [...content.markers].sort((one, other) => Number(one.isActive) - Number(other.isActive))) {
      this.drawMarker(context, area, content.run, marker);
    }
  }

  private area(): Area {
    const { clientWidth, clientHeight } = this.canvas;
    const width = clientWidth - MARGIN.left - MARGIN.right;
    const height = clientHeight - MARGIN.top - MARGIN.bottom;
    const space = this.content?.run.space;
    if (space && space.kind === "box" && space.names.length === 1) {
      return { left: 14, top: MARGIN.top, width: clientWidth - 28, height: Math.min(STRIP_HEIGHT, height) };
    }
    const side = Math.max(40, Math.min(width, height));
    return { left: MARGIN.left + (width - side) / 2, top: MARGIN.top, width: side, height: side };
  }

  private pickAt(event: PointerEvent, isFinal: boolean): void {
    if (!this.content) return;
    const box = this.canvas.getBoundingClientRect();
    this.pick(this.skillAt(this.area(), event.clientX - box.left, event.clientY - box.top), isFinal);
  }

  private skillAt(area: Area, x: number, y: number): Skill {
    const { run, markers } = this.content as MapContent;
    const { space } = run;
    if (space.kind === "circle") {
      return headingSkill(Math.atan2(area.top + area.height / 2 - y, x - area.left - area.width / 2));
    }
    const across = Math.min(1 - 1e-9, Math.max(0, (x - area.left) / area.width));
    const up = Math.min(1 - 1e-9, Math.max(0, 1 - (y - area.top) / area.height));
    const current = markers.find((marker) => marker.isActive)?.skill ?? cellCentre(space, 0);
    const shares = shownValues(space, current).map((value, dim) => this.share(run, dim, value));
    if (space.names.length === 4) {
      [shares[0], shares[2]] = unnest(across, space.grid_shape[0]);
      [shares[1], shares[3]] = unnest(up, space.grid_shape[1]);
    } else {
      shares[0] = across;
      if (shares.length > 1) shares[1] = up;
    }
    return fromShown(space, shares.map((share, dim) => {
      const [low, high] = shownRange(space, dim);
      return low + share * (high - low);
    }));
  }

  private share(run: Run, dim: number, value: number): number {
    const [low, high] = shownRange(run.space, dim);
    return Math.min(1, Math.max(0, (value - low) / (high - low)));
  }

  /** Where a skill or an observed skill is on the canvas. */
  private place(area: Area, run: Run, skill: ArrayLike<number>): [number, number] {
    const { space } = run;
    if (space.kind === "circle") {
      const radius = (area.width / 2) * UNIT;
      return [area.left + area.width / 2 + skill[0] * radius, area.top + area.height / 2 - skill[1] * radius];
    }
    const shares = Array.from(skill, (value, dim) => this.share(run, dim, value));
    let [across, up] = [shares[0], shares.length > 1 ? shares[1] : 0.5];
    if (shares.length === 4) {
      across = nest(shares[0], shares[2], space.grid_shape[0]);
      up = nest(shares[1], shares[3], space.grid_shape[1]);
    }
    return [area.left + across * area.width, area.top + (1 - up) * area.height];
  }

  /** Copies the coloured cells, which are drawn again only when they change. */
  private drawHeat(context: CanvasRenderingContext2D, area: Area, content: MapContent): void {
    const { run, mode, limits, markers } = content;
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    const isSlice = run.space.names.length === 3 || run.space.names.length > 4;
    const active = markers.find((marker) => marker.isActive)?.skill;
    const slice = isSlice && active ? cellOf(run.space, active).slice(2) : [];
    const key = [run.label, mode, limits, slice, clientWidth, clientHeight, ratio].join(" ");
    if (!this.heat || key !== this.heatKey) {
      this.heat ??= document.createElement("canvas");
      this.heatKey = key;
      this.heat.width = Math.round(clientWidth * ratio);
      this.heat.height = Math.round(clientHeight * ratio);
      const heat = this.heat.getContext("2d") as CanvasRenderingContext2D;
      heat.setTransform(ratio, 0, 0, ratio, 0, 0);
      drawCells(heat, area, content, slice);
    }
    context.drawImage(this.heat, 0, 0, clientWidth, clientHeight);
  }

  private drawAxes(context: CanvasRenderingContext2D, area: Area, run: Run): void {
    const { space } = run;
    const isNested = space.names.length === 4;
    context.strokeStyle = MUTED;
    context.lineWidth = 1;
    context.strokeRect(area.left - 0.5, area.top - 0.5, area.width + 1, area.height + 1);
    if (isNested && run.evaluation) {
      context.strokeStyle = "#ffffff";
      context.lineWidth = 2;
      for (let i = 1; i < space.grid_shape[0]; i++) line(context, area.left + (i / space.grid_shape[0]) * area.width, area.top, 0, area.height);
      for (let i = 1; i < space.grid_shape[1]; i++) line(context, area.left, area.top + (i / space.grid_shape[1]) * area.height, area.width, 0);
    }
    context.fillStyle = MUTED;
    const bottom = area.top + area.height;
    ticks(space, 0).forEach(([share, text]) => {
      context.textAlign = share === 0 ? "left" : share === 1 ? "right" : "center";
      context.fillText(text, area.left + share * area.width, bottom + 13);
    });
    context.fillStyle = INK;
    context.textAlign = "center";
    const label = (dim: number) => (isNested ? `${shortName(space.names[dim])}, inside: ${shortName(space.names[dim + 2])}` : space.names[dim]);
    context.fillText(label(0), area.left + area.width / 2, bottom + 29, area.width + 80);
    if (space.names.length === 1) return;
    context.fillStyle = MUTED;
    context.textAlign = "right";
    ticks(space, 1).forEach(([share, text]) => {
      const shift = share === 0 ? 0 : share === 1 ? 9 : 4;
      context.fillText(text, area.left - 5, bottom - share * area.height + shift);
    });
    context.save();
    context.fillStyle = INK;
    context.textAlign = "center";
    context.translate(area.left - 32, area.top + area.height / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(label(1), 0, 0, area.height + 40);
    context.restore();
  }

  private drawDialFrame(context: CanvasRenderingContext2D, area: Area, run: Run): void {
    const radius = area.width / 2;
    const [x, y] = [area.left + radius, area.top + radius];
    context.strokeStyle = MUTED;
    context.lineWidth = 1;
    for (const share of RING) {
      context.beginPath();
      context.arc(x, y, share * radius, 0, 2 * Math.PI);
      context.stroke();
    }
    context.fillStyle = INK;
    context.textAlign = "center";
    context.fillText(run.space.names[0], x, area.top + area.height + 29);
    context.fillStyle = MUTED;
    context.fillText("0", x + radius * 0.56, y + 4);
    context.fillText("±π", x - radius * 0.56, y + 4);
    context.fillText("π/2", x, y - radius * 0.52);
    context.fillText("−π/2", x, y + radius * 0.58);
  }

  private drawColourBar(context: CanvasRenderingContext2D, area: Area, content: MapContent): void {
    const [low, high] = content.limits as [number, number];
    const [left, top, width, height] = [area.left, area.top + area.height + 42, area.width, 9];
    const gradient = context.createLinearGradient(left, 0, left + width, 0);
    for (let i = 0; i <= 16; i++) gradient.addColorStop(i / 16, viridis(i / 16));
    context.fillStyle = gradient;
    context.fillRect(left, top, width, height);
    const mark = (-content.run.d_eval - low) / (high - low);
    const isMarked = content.mode === "distance" && mark > 0.3 && mark < 0.85;
    const label = content.mode === "distance" ? "−distance" : "return";
    context.fillStyle = MUTED;
    context.textAlign = "left";
    context.fillText(`${label}  ${format(low, high - low)}`, left, top + 21);
    context.textAlign = "right";
    context.fillText(format(high, high - low), left + width, top + 21);
    if (!isMarked) return;
    context.fillStyle = INK;
    context.fillRect(left + mark * width - 0.75, top - 3, 1.5, height + 6);
    context.textAlign = "center";
    context.fillText(format(-content.run.d_eval, high - low), left + mark * width, top + 21);
  }

  private drawMarker(context: CanvasRenderingContext2D, area: Area, run: Run, marker: Marker): void {
    const colour = PANE_COLOURS[marker.pane];
    const [x, y] = this.place(area, run, marker.skill);
    if (marker.observed) {
      const [observedX, observedY] = this.place(area, run, marker.observed);
      context.lineWidth = 3.5;
      context.strokeStyle = "#ffffff";
      line(context, x, y, observedX - x, observedY - y);
      context.lineWidth = 1.5;
      context.strokeStyle = colour;
      line(context, x, y, observedX - x, observedY - y);
      dot(context, observedX, observedY, 4.5, colour, "#ffffff");
    }
    dot(context, x, y, 9, "#ffffff", colour);
    context.fillStyle = colour;
    context.font = "bold 11px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText(marker.pane.toUpperCase(), x, y + 4);
    context.font = "11px system-ui, sans-serif";
  }
}

function drawCells(context: CanvasRenderingContext2D, area: Area, content: MapContent, slice: number[]): void {
  const { run, mode, limits } = content;
  const { space } = run;
  const values = cellValues(run, mode);
  const isCircle = space.kind === "circle";
  context.save();
  context.beginPath();
  if (isCircle) {
    const [x, y] = [area.left + area.width / 2, area.top + area.height / 2];
    context.arc(x, y, (RING[1] * area.width) / 2, 0, 2 * Math.PI);
    context.arc(x, y, (RING[0] * area.width) / 2, 0, 2 * Math.PI, true);
  } else {
    context.rect(area.left, area.top, area.width, area.height);
  }
  context.clip();
  drawBackground(context, area, values.length > 0, space.names.length === 4 ? space.grid_shape[0] : 10);
  if (limits) {
    values.forEach((value, index) => {
      if (value === null) return;
      const cell = indexCell(space.grid_shape, index);
      if (slice.some((position, i) => cell[i + 2] !== position)) return;
      context.fillStyle = viridis((value - limits[0]) / (limits[1] - limits[0]));
      if (isCircle) drawWedge(context, area, heading(cellCentre(space, index)), cellStep(space, 0));
      else context.fillRect(...cellBox(area, space.grid_shape, cell));
    });
  }
  context.restore();
}

/** Hatching, over which the cells are drawn; faint lines where nothing was evaluated. */
function drawBackground(context: CanvasRenderingContext2D, area: Area, isEvaluated: boolean, numTiles: number): void {
  context.fillStyle = isEvaluated ? EMPTY : "#ffffff";
  context.fillRect(area.left, area.top, area.width, area.height);
  context.strokeStyle = isEvaluated ? "#c3cad4" : LINE;
  context.lineWidth = 1;
  if (!isEvaluated) {
    for (let i = 1; i < numTiles; i++) {
      line(context, area.left + (i / numTiles) * area.width, area.top, 0, area.height);
      if (area.height === area.width) line(context, area.left, area.top + (i / numTiles) * area.height, area.width, 0);
    }
    return;
  }
  for (let x = -area.height; x < area.width; x += 6) line(context, area.left + x, area.top + area.height, area.height, -area.height);
}

function drawWedge(context: CanvasRenderingContext2D, area: Area, angle: number, width: number): void {
  const radius = area.width / 2;
  const [x, y] = [area.left + radius, area.top + radius];
  const [from, to] = [-angle - width / 2 - 0.003, -angle + width / 2 + 0.003];
  context.beginPath();
  context.arc(x, y, RING[1] * radius, from, to);
  context.arc(x, y, RING[0] * radius, to, from, true);
  context.fill();
}

function indexCell(shape: number[], index: number): number[] {
  const cell: number[] = [];
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    cell[dim] = index % shape[dim];
    index = Math.floor(index / shape[dim]);
  }
  return cell;
}

function cellBox(area: Area, shape: number[], cell: number[]): [number, number, number, number] {
  const isNested = shape.length === 4;
  const columns = isNested ? shape[0] * shape[2] : shape[0];
  const rows = isNested ? shape[1] * shape[3] : (shape[1] ?? 1);
  const column = isNested ? cell[0] * shape[2] + cell[2] : cell[0];
  const row = isNested ? cell[1] * shape[3] + cell[3] : (cell[1] ?? 0);
  const [width, height] = [area.width / columns, area.height / rows];
  // A little more than its share: no gaps between cells.
  return [area.left + column * width, area.top + area.height - (row + 1) * height, width + 0.4, height + 0.4];
}

function nest(outer: number, inner: number, count: number): number {
  return (Math.min(count - 1, Math.floor(outer * count)) + inner) / count;
}

function unnest(share: number, count: number): [number, number] {
  const cell = Math.floor(share * count);
  return [(cell + 0.5) / count, share * count - cell];
}

function ticks(space: Run["space"], dim: number): [number, string][] {
  const [low, high] = shownRange(space, dim);
  return [0, 0.5, 1].map((share) => [share, format(low + share * (high - low), high - low)]);
}

function line(context: CanvasRenderingContext2D, x: number, y: number, across: number, down: number): void {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x + across, y + down);
  context.stroke();
}

function dot(context: CanvasRenderingContext2D, x: number, y: number, radius: number, fill: string, stroke: string): void {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = fill;
  context.fill();
  context.lineWidth = radius > 6 ? 2.5 : 1.5;
  context.strokeStyle = stroke;
  context.stroke();
}

