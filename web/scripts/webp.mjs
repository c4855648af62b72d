// An animated WebP from pictures in a page: https://developers.google.com/speed/webp/docs/riff_container.

/** Runs in a page: keeps the last picture on a canvas, and returns what the next one changes, as WebP. */
export function differ(width, height) {
  const canvas = (w, h) => Object.assign(document.createElement("canvas"), { width: w, height: h });
  const context = canvas(width, height).getContext("2d", { willReadFrequently: true });
  let before = new Uint32Array(width * height);
  const encode = async (part, quality) => {
    const blob = await new Promise((resolve) => part.toBlob(resolve, "image/webp", quality));
    const bytes = new Uint8Array(await blob.arrayBuffer());
    return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  };
  globalThis.differenceOf = async (png) => {
    const picture = Object.assign(new Image(), { src: `data:image/png;base64,${png}` });
    await picture.decode();
    context.drawImage(picture, 0, 0);
    const now = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
    let [left, top, right, bottom] = [width, height, -1, -1];
    for (let idx = 0; idx < now.length; idx++) {
      if (now[idx] === before[idx]) continue;
      const [x, y] = [idx % width, Math.floor(idx / width)];
      [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
    }
    before = now;
    if (right < 0) return undefined;
    // A frame lies at even places.
    [left, top] = [left & ~1, top & ~1];
    const part = canvas(right - left + 1, bottom - top + 1);
    part.getContext("2d", { alpha: false }).drawImage(context.canvas, -left, -top);
    // Text is smaller without losses, and the rest with them.
    const [exact, lossy] = [await encode(part, 1), await encode(part, 0.8)];
    const webp = exact.length < lossy.length ? exact : lossy;
    return { left, top, width: part.width, height: part.height, webp };
  };
}

const chunk = (name, content) => {
  const head = Buffer.alloc(8);
  head.write(name);
  head.writeUInt32LE(content.length, 4);
  return Buffer.concat([head, content, Buffer.alloc(content.length % 2)]);
};
const uint24 = (...values) =>
  Buffer.concat(values.map((value) => Buffer.from([value & 255, (value >> 8) & 255, value >> 16])));

/** The chunk of pixels in a WebP file. */
function pixels(file) {
  for (let at = 12; at < file.length; ) {
    const end = at + 8 + file.readUInt32LE(at + 4);
    const name = file.toString("latin1", at, at + 4);
    if (name === "VP8 " || name === "VP8L") return chunk(name, file.subarray(at + 8, end));
    at = end + (end % 2);
  }
  throw new Error("a picture without pixels");
}

/** Returns an animation that begins again at its end. Each frame has a `duration` in milliseconds. */
export function animation(width, height, frames) {
  const parts = frames.map(({ left, top, width: w, height: h, duration, webp }) => {
    const head = Buffer.concat([uint24(left / 2, top / 2, w - 1, h - 1, duration), Buffer.from([2])]);
    return chunk("ANMF", Buffer.concat([head, pixels(Buffer.from(webp, "base64"))]));
  });
  const extended = Buffer.concat([Buffer.from([2, 0, 0, 0]), uint24(width - 1, height - 1)]);
  const body = [Buffer.from("WEBP"), chunk("VP8X", extended), chunk("ANIM", Buffer.alloc(6)), ...parts];
  return chunk("RIFF", Buffer.concat(body));
}
