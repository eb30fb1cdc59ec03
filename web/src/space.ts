/** Skills as numbers: bounds, grid cells, and the values that are shown of them. */

import type { Skill, Space } from "./types";

export function clampSkill(space: Space, skill: Skill): Skill {
  if (space.kind === "circle") {
    const norm = Math.hypot(...skill) || 1;
    return norm === 1 ? skill : skill.map((value) => value / norm);
  }
  return skill.map((value, i) => Math.min(space.high[i], Math.max(space.low[i], value)));
}

export function headingSkill(angle: number): Skill {
  return [Math.cos(angle), Math.sin(angle)];
}

export function heading(skill: ArrayLike<number>): number {
  return Math.atan2(skill[1], skill[0]);
}

/** What is shown of a skill or feature: itself, or the heading of a point on a circle. */
export function shownValues(space: Space, values: ArrayLike<number>): number[] {
  return space.kind === "circle" ? [heading(values)] : Array.from(values);
}

/** The lowest and highest shown value of a dimension. */
export function shownRange(space: Space, dim: number): [number, number] {
  return space.kind === "circle" ? [-Math.PI, Math.PI] : [space.low[dim], space.high[dim]];
}

export function fromShown(space: Space, values: number[]): Skill {
  return space.kind === "circle" ? headingSkill(values[0]) : clampSkill(space, values);
}

/** How far a shown value moves from one grid cell to the next. */
export function cellStep(space: Space, dim: number): number {
  const [low, high] = shownRange(space, dim);
  return (high - low) / space.grid_shape[dim];
}

export function cellOf(space: Space, skill: Skill): number[] {
  return shownValues(space, skill).map((value, dim) => {
    const [low, high] = shownRange(space, dim);
    const count = space.grid_shape[dim];
    return Math.min(count - 1, Math.max(0, Math.floor(((value - low) / (high - low)) * count)));
  });
}

export function cellIndex(space: Space, cell: number[]): number {
  return cell.reduce((index, position, dim) => index * space.grid_shape[dim] + position, 0);
}

export function cellCentre(space: Space, index: number): Skill {
  const cell: number[] = [];
  for (let dim = space.grid_shape.length - 1; dim >= 0; dim--) {
    cell[dim] = index % space.grid_shape[dim];
    index = Math.floor(index / space.grid_shape[dim]);
  }
  return fromShown(space, cell.map((position, dim) => shownRange(space, dim)[0] + (position + 0.5) * cellStep(space, dim)));
}

export function distance(one: ArrayLike<number>, other: ArrayLike<number>): number {
  let sum = 0;
  for (let i = 0; i < one.length; i++) sum += (one[i] - other[i]) ** 2;
  return Math.sqrt(sum);
}

/** A number in few characters, with as many decimals as a range of this width needs. */
export function format(value: number, width = 1): string {
  if (!Number.isFinite(value)) return "–";
  const decimals = [50, 20, 0.5, 0.05].filter((bound) => width < bound).length;
  return value.toFixed(decimals).replace(/^-(0(\.0*)?)$/, "$1").replace("-", "−");
}

export function formatSkill(space: Space, skill: ArrayLike<number>): string {
  const values = shownValues(space, skill).map((value, dim) => {
    const [low, high] = shownRange(space, dim);
    return format(value, high - low);
  });
  return values.length > 1 ? `(${values.join(", ")})` : values[0];
}

/** The name of a feature without its unit. */
export function shortName(name: string): string {
  return name.replace(/ \([^)]*\)$/, "");
}
