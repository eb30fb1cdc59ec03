/** Where runs and episodes come from: the server, or the data inside a static copy. */

import { distance } from "./space";
import type { Chunk, Run, Skill } from "./types";

export interface Listener {
  chunk(chunk: Chunk): void;
  note(text: string): void;
}

export interface Source {
  runs(): Promise<Run[]>;
  /** The nearest skill that can be executed: itself, or the nearest of those recorded. */
  nearest(run: number, skill: Skill): Skill;
  /** The skills that are recorded, null where any can be executed. */
  recorded(run: number): Skill[] | null;
  /** The only seed there is, null where any will do. */
  readonly seed: number | null;
  execute(pane: "a" | "b", run: number, skill: Skill, seed: number, listener: Listener, signal: AbortSignal): Promise<void>;
}

/** The page of `qdac explore`. */
class Server implements Source {
  readonly seed = null;
  private readonly client = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");

  async runs(): Promise<Run[]> {
    const response = await fetch("api/runs");
    if (!response.ok) throw new Error(await sentence(response));
    return (await response.json()).runs;
  }

  nearest(_run: number, skill: Skill): Skill {
    return skill;
  }

  recorded(): null {
    return null;
  }

  async execute(pane: "a" | "b", run: number, skill: Skill, seed: number, listener: Listener, signal: AbortSignal): Promise<void> {
    let response: Response;
    try {
      response = await fetch("api/episode", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ client: this.client, pane, run, skill, seed }),
        signal,
      });
    } catch (error) {
      if (signal.aborted) return;
      throw new Error("The server does not answer. Is `qdac explore` still running?", { cause: error });
    }
    if (!response.ok || !response.body) throw new Error(await sentence(response));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done || signal.aborted) return;
        const lines = (rest + value).split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) this.hand(JSON.parse(line), listener);
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  private hand(message: Chunk | { note: string } | { error: string }, listener: Listener): void {
    if ("error" in message) throw new Error(message.error);
    if ("note" in message) listener.note(message.note);
    else listener.chunk(message);
  }
}

async function sentence(response: Response): Promise<string> {
  try {
    return (await response.json()).error;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

interface Copy {
  runs: Run[];
  episodes: { skill: Skill; chunks: Chunk[] }[][];
  seed: number;
}

/** A file that `qdac explore --export` wrote. */
class StaticCopy implements Source {
  constructor(private readonly copy: Copy) {}

  get seed(): number {
    return this.copy.seed;
  }

  async runs(): Promise<Run[]> {
    return this.copy.runs;
  }

  nearest(run: number, skill: Skill): Skill {
    return this.find(run, skill).skill;
  }

  recorded(run: number): Skill[] {
    return this.copy.episodes[run].map((episode) => episode.skill);
  }

  async execute(_pane: "a" | "b", run: number, skill: Skill, _seed: number, listener: Listener): Promise<void> {
    for (const chunk of this.find(run, skill).chunks) listener.chunk(chunk);
  }

  private find(run: number, skill: Skill): { skill: Skill; chunks: Chunk[] } {
    return this.copy.episodes[run].reduce((best, episode) =>
      distance(episode.skill, skill) < distance(best.skill, skill) ? episode : best,
    );
  }
}

export function findSource(): Source {
  const data = document.getElementById("data");
  return data ? new StaticCopy(JSON.parse(data.textContent ?? "")) : new Server();
}
