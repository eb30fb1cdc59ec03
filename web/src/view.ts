/** The robot in three dimensions: shapes on links, a floor, light with shadows, a camera that follows. */

import {
  AmbientLight, Box3, BoxGeometry, BufferAttribute, BufferGeometry, CanvasTexture, CapsuleGeometry, Color, CylinderGeometry, DirectionalLight, Fog,
  Group, HemisphereLight, Mesh, MeshLambertMaterial, MeshStandardMaterial, PerspectiveCamera, PlaneGeometry, Quaternion, RepeatWrapping, Scene, SphereGeometry,
  SRGBColorSpace, Vector3, WebGLRenderer,
} from "three";
import { OrbitControls } from "three/examples/jsm/controls/OrbitControls.js";
import type { Episode } from "./episode";
import type { Run, Shape } from "./types";

const SKY = "#eef2f6";
/** Of shapes whose file names no colour; those of the left side are lighter. */
const [DEFAULT_COLOUR, LEFT_COLOUR] = ["#5d7291", "#c9b08a"];
const FLOOR_SIZE = 120;
/** Metres between two lines of the floor; the floor moves with the robot in pairs of them. */
const TILE = 1;

export class View {
  private readonly scene = new Scene();
  private readonly camera = new PerspectiveCamera(38, 1, 0.01, 400);
  private readonly renderer: WebGLRenderer;
  private readonly controls: OrbitControls;
  private readonly sun = new DirectionalLight("#ffffff", 2.4);
  private readonly floor = makeFloor();
  private robot = new Group();
  private links: Group[] = [];
  private run: Run | null = null;
  private needsFraming = true;
  private readonly focus = new Vector3();
  private readonly quaternions = [new Quaternion(), new Quaternion()];
  private hasChanged = true;
  follow = true;

  /** Throws where the browser has no WebGL. */
  constructor(private readonly canvas: HTMLCanvasElement) {
    this.renderer = new WebGLRenderer({ canvas, antialias: true });
    this.renderer.setPixelRatio(Math.min(2, window.devicePixelRatio || 1));
    this.renderer.shadowMap.enabled = true;
    this.scene.background = new Color(SKY);
    this.scene.fog = new Fog(SKY, 14, 42);
    this.camera.up.set(0, 0, 1);
    this.controls = new OrbitControls(this.camera, canvas);
    this.controls.maxPolarAngle = Math.PI * 0.495;
    this.controls.addEventListener("change", () => (this.hasChanged = true));
    this.sun.castShadow = true;
    this.sun.shadow.mapSize.set(1024, 1024);
    this.sun.shadow.radius = 4;
    this.sun.shadow.bias = -0.0005;
    this.sun.shadow.normalBias = 0.03;
    this.scene.add(new AmbientLight("#ffffff", 0.5), new HemisphereLight("#ffffff", "#c8d0da", 1.0), this.sun, this.sun.target, this.floor);
  }

  show(run: Run): void {
    if (run === this.run) return;
    this.run = run;
    this.scene.remove(this.robot);
    this.robot.traverse((part) => {
      if (part instanceof Mesh) {
        part.geometry.dispose();
        part.material.dispose();
      }
    });
    this.robot = new Group();
    this.links = Array.from({ length: run.num_links }, () => new Group());
    this.robot.add(...this.links);
    this.floor.visible = run.shapes.some((shape) => shape.kind === "plane");
    for (const shape of run.shapes) {
      if (shape.kind === "plane") this.floor.position.z = shape.position[2];
      else (shape.link < 0 ? this.robot : this.links[shape.link]).add(makeMesh(shape));
    }
    this.scene.add(this.robot);
    this.needsFraming = true;
  }

  /** Shows this time of the episode. */
  pose(episode: Episode, seconds: number): void {
    if (this.needsFraming) {
      // By the start of the episode, so that the robots of two panes are shown at one size.
      this.place(episode, 0);
      this.frame();
    }
    this.place(episode, seconds);
    this.aim();
    this.hasChanged = true;
  }

  /** Puts the links where they are, between the two poses nearest in time. */
  private place(episode: Episode, seconds: number): void {
    const frames = episode.framesAt(seconds);
    if (!frames) return;
    const { from, to, share } = frames;
    const [one, other] = this.quaternions;
    this.links.forEach((link, i) => {
      const at = i * 7;
      link.position.set(from[at], from[at + 1], from[at + 2]);
      link.position.lerp(new Vector3(to[at], to[at + 1], to[at + 2]), share);
      one.set(from[at + 4], from[at + 5], from[at + 6], from[at + 3]);
      other.set(to[at + 4], to[at + 5], to[at + 6], to[at + 3]);
      link.quaternion.copy(one.slerp(other, share));
    });
  }

  /** Draws if anything changed since the last time. */
  render(): void {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const ratio = this.renderer.getPixelRatio();
    if (this.canvas.width !== Math.floor(width * ratio) || this.canvas.height !== Math.floor(height * ratio)) {
      this.renderer.setSize(width, height, false);
      this.camera.aspect = width / height;
      this.camera.updateProjectionMatrix();
      this.hasChanged = true;
    }
    if (!this.hasChanged) return;
    this.hasChanged = false;
    this.renderer.render(this.scene, this.camera);
  }

  /** Chooses a camera that sees the whole robot, or the whole board of a task without one, from the side. */
  frame(): void {
    this.needsFraming = false;
    this.aimAt(this.focus);
    const isRobot = this.floor.visible && this.links.length > 0;
    const box = new Box3();
    if (isRobot) for (const link of this.links) box.expandByObject(link);
    else box.set(new Vector3(-1, -1, 0), new Vector3(1, 1, 0.2));
    box.getCenter(this.controls.target);
    const radius = box.getSize(new Vector3()).length() / 2;
    const direction = isRobot ? new Vector3(0.45, -1, 0.3) : new Vector3(0, -1, 1.1);
    this.camera.position.copy(this.controls.target).addScaledVector(direction.normalize(), radius * (isRobot ? 3.7 : 2.3));
    this.controls.update();
  }

  /** The place that the camera follows: the first link, or the middle of a board. */
  private aimAt(place: Vector3): void {
    if (this.floor.visible && this.links.length) place.copy(this.links[0].position);
    else place.set(0, 0, 0);
  }

  private aim(): void {
    const before = this.focus.clone();
    this.aimAt(this.focus);
    if (!Number.isFinite(this.focus.lengthSq())) this.focus.copy(before);
    const { x, y } = this.focus;
    if (this.follow) {
      const [across, along] = [x - before.x, y - before.y];
      this.camera.position.x += across;
      this.camera.position.y += along;
      this.controls.target.x += across;
      this.controls.target.y += along;
      this.controls.update();
    }
    this.floor.position.x = Math.round(x / (2 * TILE)) * 2 * TILE;
    this.floor.position.y = Math.round(y / (2 * TILE)) * 2 * TILE;
    this.sun.position.set(x + 2, y - 3, 6);
    this.sun.target.position.set(x, y, 0);
  }
}

function makeMesh(shape: Shape): Mesh {
  const colour = shape.colour ? new Color().setRGB(shape.colour[0], shape.colour[1], shape.colour[2], SRGBColorSpace) : new Color(shape.is_left ? LEFT_COLOUR : DEFAULT_COLOUR);
  const opacity = shape.colour ? shape.colour[3] : 1;
  const material = new MeshStandardMaterial({ color: colour, roughness: 0.55, metalness: 0.05, opacity, transparent: opacity < 1 });
  const mesh = new Mesh(makeGeometry(shape), material);
  mesh.castShadow = shape.link >= 0;
  mesh.receiveShadow = true;
  mesh.position.set(...shape.position);
  const [w, x, y, z] = shape.rotation;
  mesh.quaternion.set(x, y, z, w);
  return mesh;
}

/** MuJoCo's sizes: radius and half lengths, long axis z; three.js has the long axis y. */
function makeGeometry({ kind, size, vertices, faces }: Shape): BufferGeometry {
  if (kind === "sphere") return new SphereGeometry(size[0], 32, 20);
  if (kind === "capsule") return new CapsuleGeometry(size[0], 2 * size[1], 10, 24).rotateX(Math.PI / 2);
  if (kind === "cylinder") return new CylinderGeometry(size[0], size[0], 2 * size[1], 40).rotateX(Math.PI / 2);
  if (kind === "ellipsoid") return new SphereGeometry(1, 32, 20).scale(size[0], size[1], size[2]);
  if (kind === "box") return new BoxGeometry(2 * size[0], 2 * size[1], 2 * size[2]);
  const geometry = new BufferGeometry();
  geometry.setAttribute("position", new BufferAttribute(Float32Array.from(vertices ?? []), 3));
  geometry.setIndex(faces ?? []);
  geometry.computeVertexNormals();
  return geometry;
}

function makeFloor(): Mesh {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 128;
  const context = tile.getContext("2d") as CanvasRenderingContext2D;
  context.fillStyle = "#e3e8ee";
  context.fillRect(0, 0, 128, 128);
  context.fillStyle = "#d6dde5";
  context.fillRect(0, 0, 64, 64);
  context.fillRect(64, 64, 64, 64);
  const texture = new CanvasTexture(tile);
  texture.wrapS = texture.wrapT = RepeatWrapping;
  texture.repeat.set(FLOOR_SIZE / (2 * TILE), FLOOR_SIZE / (2 * TILE));
  texture.colorSpace = SRGBColorSpace;
  texture.anisotropy = 8;
  const floor = new Mesh(new PlaneGeometry(FLOOR_SIZE, FLOOR_SIZE), new MeshLambertMaterial({ map: texture }));
  floor.receiveShadow = true;
  return floor;
}
