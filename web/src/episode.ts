/** An episode as far as it is known: poses, features, rewards, and their running sums. */

import type { Chunk, Run, Skill } from "./types";

function decode(text: string): Float32Array {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

export class Episode {
  steps = 0;
  end: Chunk["end"];
  readonly featureSize: number;
  readonly features: Float32Array;
  /** The mean feature up to and with each step. */
  readonly means: Float32Array;
  /** The return up to and with each step. */
  readonly returns: Float32Array;
  private readonly poses: Float32Array;
  private numFrames = 0;
  private readonly poseSize: number;

  constructor(readonly run: Run, readonly skill: Skill, readonly seed: number) {
    this.featureSize = skill.length;
    this.poseSize = run.num_links * 7;
    this.features = new Float32Array(run.num_steps * this.featureSize);
    this.means = new Float32Array(run.num_steps * this.featureSize);
    this.returns = new Float32Array(run.num_steps);
    this.poses = new Float32Array(Math.ceil(run.num_steps / run.stride) * this.poseSize);
  }

  add(chunk: Chunk): void {
    const size = this.featureSize;
    this.features.set(decode(chunk.features), chunk.start * size);
    const poses = decode(chunk.poses);
    this.poses.set(poses, this.numFrames * this.poseSize);
    this.numFrames += poses.length / this.poseSize;
    const rewards = decode(chunk.rewards);
    for (let i = 0; i < chunk.steps; i++) {
      const step = chunk.start + i;
      this.returns[step] = (step ? this.returns[step - 1] : 0) + rewards[i];
      for (let dim = 0; dim < size; dim++) {
        const before = step ? this.means[(step - 1) * size + dim] : 0;
        this.means[step * size + dim] = before + (this.features[step * size + dim] - before) / (step + 1);
      }
    }
    this.steps += chunk.steps;
    this.end = chunk.end;
  }

  get seconds(): number {
    return this.steps * this.run.step_seconds;
  }

  stepAt(seconds: number): number {
    return Math.max(0, Math.min(this.steps - 1, Math.floor(seconds / this.run.step_seconds + 1e-6)));
  }

  meanAt(step: number): Float32Array {
    return this.means.subarray(step * this.featureSize, (step + 1) * this.featureSize);
  }

  /** The poses before and after a time, and how far the time is from the one to the other. */
  framesAt(seconds: number): { from: Float32Array; to: Float32Array; share: number } | null {
    if (!this.numFrames) return null;
    const position = Math.max(0, seconds / (this.run.step_seconds * this.run.stride));
    const from = Math.min(this.numFrames - 1, Math.floor(position));
    const to = Math.min(this.numFrames - 1, from + 1);
    return { from: this.frame(from), to: this.frame(to), share: Math.min(1, position - from) };
  }

  private frame(index: number): Float32Array {
    return this.poses.subarray(index * this.poseSize, (index + 1) * this.poseSize);
  }
}
