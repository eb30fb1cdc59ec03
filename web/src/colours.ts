/** Colours, the same everywhere: viridis for maps, blue for pane A, vermilion for pane B. */

export const PANE_COLOURS = { a: "#0072b2", b: "#d55e00" } as const;
export const INK = "#1b2330";
export const MUTED = "#5b6677";
export const LINE = "#d5dbe3";
export const EMPTY = "#f0f2f5";

/** Viridis at equal steps. */
const VIRIDIS = [
  [68, 1, 84], [72, 26, 108], [71, 47, 125], [65, 68, 135], [57, 86, 140], [49, 104, 142], [42, 120, 142], [35, 136, 142],
  [31, 152, 139], [34, 168, 132], [53, 183, 121], [84, 197, 104], [122, 209, 81], [165, 219, 54], [210, 226, 27], [253, 231, 37],
];

export function viridis(share: number): string {
  const position = Math.min(1, Math.max(0, share)) * (VIRIDIS.length - 1);
  const index = Math.min(VIRIDIS.length - 2, Math.floor(position));
  const rest = position - index;
  const mixed = VIRIDIS[index].map((value, i) => Math.round(value + (VIRIDIS[index + 1][i] - value) * rest));
  return `rgb(${mixed.join(",")})`;
}

/** A canvas sized to its box at the screen's resolution, cleared, in CSS pixels. */
export function prepareCanvas(canvas: HTMLCanvasElement): { context: CanvasRenderingContext2D; width: number; height: number } {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = window.devicePixelRatio || 1;
  const [pixelWidth, pixelHeight] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixelWidth || canvas.height !== pixelHeight) {
    canvas.width = pixelWidth;
    canvas.height = pixelHeight;
  }
  const context = canvas.getContext("2d");
  if (!context) throw new Error("This browser cannot draw on a canvas.");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return { context, width, height };
}
