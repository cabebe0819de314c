/* Canvas drawing and small helpers; no chart knows the page. */

const $ = (id) => document.getElementById(id);

function element(name, text, attributes) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = String(text);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  return made;
}

function replaceChildren(parent, children) {
  parent.textContent = "";
  for (const child of children) if (child) parent.appendChild(child);
}

function decode(text, Kind) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Kind(bytes.buffer);
}

function dequantise(packed) {
  if (!packed) return null;
  const steps = decode(packed.steps, Uint16Array);
  const found = new Float64Array(steps.length);
  const unit = (packed.high - packed.low) / 65534;
  for (let i = 0; i < steps.length; i++) found[i] = steps[i] === 65535 ? NaN : packed.low + unit * steps[i];
  return found;
}

const count = (value) => Number(value).toLocaleString("en-US");
const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits === undefined ? 3 : digits) : "–");

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const CIVIDIS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
const GROUPS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C"];
const COLD = [33, 102, 172];
const HOT = [179, 88, 6];

function mix(a, b, t) {
  return [0, 1, 2].map((i) => Math.round(a[i] + (b[i] - a[i]) * t));
}

function sequential(t) {
  const x = Math.max(0, Math.min(1, t)) * (CIVIDIS.length - 1);
  const i = Math.min(CIVIDIS.length - 2, Math.floor(x));
  return mix(CIVIDIS[i], CIVIDIS[i + 1], x - i);
}

function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

function diverging(value) {
  const zero = channels(css("--zero"));
  return mix(zero, value < 0 ? COLD : HOT, Math.min(1, Math.abs(value)));
}

const rgb = (c) => `rgb(${c[0]},${c[1]},${c[2]})`;

function surface(canvas, height) {
  const width = Math.max(120, canvas.clientWidth);
  const ratio = window.devicePixelRatio || 1;
  const w = Math.round(width * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  pen.lineJoin = "round";
  return { pen, width, height };
}

function ticks(low, high, most) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / most;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) found.push(Math.abs(x) < step * 1e-9 ? 0 : x);
  return found;
}

function tickText(value) {
  if (Math.abs(value) >= 1000) return count(Math.round(value));
  return String(parseFloat(value.toPrecision(6)));
}

/* Axes of a panel; returns the frame with functions from data to pixels and back. */
function axes(area, box, labels) {
  const { pen, width, height } = area;
  const ys = ticks(box.y0, box.y1, 5), widest = Math.max(...ys.map((y) => pen.measureText(tickText(y)).width));
  const left = Math.max(46, Math.ceil(widest) + 9), right = 10, top = 8, bottom = labels.x ? 36 : 20;
  const w = width - left - right, h = height - top - bottom;
  const px = (x) => left + ((x - box.x0) / (box.x1 - box.x0 || 1)) * w;
  const py = (y) => top + h - ((y - box.y0) / (box.y1 - box.y0 || 1)) * h;
  const soft = css("--soft");
  pen.strokeStyle = css("--line");
  pen.fillStyle = soft;
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const y of ys) {
    pen.beginPath();
    pen.moveTo(left, py(y));
    pen.lineTo(width - right, py(y));
    pen.stroke();
    pen.fillText(tickText(y), left - 5, py(y));
  }
  pen.textBaseline = "top";
  const xs = ticks(box.x0, box.x1, width < 420 ? 3 : 5);
  for (const x of xs) {
    pen.textAlign = x === xs[xs.length - 1] && px(x) > width - right - 20 ? "right" : "center";
    pen.fillText(tickText(x), px(x), top + h + 5);
  }
  if (labels.x) {
    pen.textAlign = "center";
    pen.fillText(labels.x, left + w / 2, top + h + 20);
  }
  if (labels.y) {
    pen.save();
    pen.translate(10, top + h / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(labels.y, 0, 0);
    pen.restore();
  }
  return { left, top, w, h, px, py, toX: (p) => box.x0 + ((p - left) / w) * (box.x1 - box.x0) };
}

function clip(pen, frame) {
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, frame.top, frame.w, frame.h);
  pen.clip();
}

function polyline(pen, frame, xs, ys) {
  pen.beginPath();
  let open = false;
  for (let i = 0; i < xs.length; i++) {
    if (xs[i] === null || ys[i] === null) {
      open = false;
      continue;
    }
    const x = frame.px(xs[i]), y = frame.py(ys[i]);
    if (open) pen.lineTo(x, y);
    else pen.moveTo(x, y);
    open = true;
  }
  pen.stroke();
}

function band(pen, frame, xs, low, high) {
  pen.beginPath();
  const known = xs.map((x, i) => i).filter((i) => xs[i] !== null && low[i] !== null && high[i] !== null);
  for (const i of known) pen.lineTo(frame.px(xs[i]), frame.py(high[i]));
  for (const i of known.reverse()) pen.lineTo(frame.px(xs[i]), frame.py(low[i]));
  pen.closePath();
  pen.fill();
}

/* A point of one of four shapes, so that groups differ without colour. */
function point(pen, x, y, r, shape) {
  pen.beginPath();
  if (shape === 1) pen.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
  else if (shape === 2) {
    pen.moveTo(x, y - r * 1.15);
    pen.lineTo(x + r * 1.1, y + r * 0.8);
    pen.lineTo(x - r * 1.1, y + r * 0.8);
    pen.closePath();
  } else if (shape === 3) {
    pen.moveTo(x, y - r * 1.25);
    pen.lineTo(x + r * 1.25, y);
    pen.lineTo(x, y + r * 1.25);
    pen.lineTo(x - r * 1.25, y);
    pen.closePath();
  } else pen.arc(x, y, r, 0, 2 * Math.PI);
}

/* Moves places apart until most pairs have a distance; returns whether any was moved. */
function spread(places, distance, times) {
  let moved = false;
  for (let t = 0; t < times; t++) {
    for (let i = 0; i < places.length; i++) {
      for (let j = i + 1; j < places.length; j++) {
        const a = places[i], b = places[j];
        let dx = b.x - a.x, dy = b.y - a.y, far = Math.hypot(dx, dy);
        if (far >= distance) continue;
        if (far < 0.01) { dx = Math.cos(i + j); dy = Math.sin(i + j); far = 1; }
        const push = (distance - Math.min(far, distance)) / 2 / far;
        a.x -= dx * push; a.y -= dy * push;
        b.x += dx * push; b.y += dy * push;
        moved = true;
      }
    }
  }
  return moved;
}

/* An image of rows x columns cells, drawn without smoothing. */
function cells(pen, rows, columns, colour, left, top, w, h) {
  const sheet = document.createElement("canvas");
  sheet.width = Math.max(1, columns);
  sheet.height = Math.max(1, rows);
  const inner = sheet.getContext("2d");
  const image = inner.createImageData(sheet.width, sheet.height);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const [red, green, blue] = colour(r, c);
      const at = 4 * (r * columns + c);
      image.data[at] = red;
      image.data[at + 1] = green;
      image.data[at + 2] = blue;
      image.data[at + 3] = 255;
    }
  }
  inner.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(sheet, left, top, w, h);
}

function table(heads, rows, caption) {
  const all = element("div");
  if (caption) all.appendChild(element("p", caption, { class: "caption" }));
  const box = element("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || heads.join(", ") });
  const made = element("table", null, { "aria-label": caption || heads.join(", ") });
  const head = made.createTHead().insertRow();
  for (const text of heads) head.appendChild(element("th", text, { scope: "col" }));
  const body = made.createTBody();
  for (const cellsOfRow of rows) {
    const line = body.insertRow();
    cellsOfRow.forEach((text, i) => line.appendChild(element(i ? "td" : "th", text, i ? {} : { scope: "row" })));
  }
  box.appendChild(made);
  all.appendChild(box);
  return all;
}

/* A line through a legend's sample, as SVG, so that it prints sharply. */
function sample(colour, dash) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  for (const [k, v] of [["width", "28"], ["height", "8"], ["aria-hidden", "true"]]) svg.setAttribute(k, v);
  const line = document.createElementNS(space, "line");
  const parts = { x1: 0, y1: 4, x2: 28, y2: 4, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash.join(" ") };
  for (const [k, v] of Object.entries(parts)) line.setAttribute(k, v);
  svg.appendChild(line);
  return svg;
}

/* A mark of the plane for its key, as SVG. */
function mark(colour, shape) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  for (const [k, v] of [["width", "14"], ["height", "14"], ["aria-hidden", "true"]]) svg.setAttribute(k, v);
  const path = document.createElementNS(space, "path");
  const paths = ["M7 2a5 5 0 1 0 .01 0z", "M2.5 2.5h9v9h-9z", "M7 1.5l5.5 9.5h-11z", "M7 1l6 6l-6 6l-6 -6z"];
  path.setAttribute("d", paths[shape]);
  path.setAttribute("fill", colour);
  svg.appendChild(path);
  return svg;
}
