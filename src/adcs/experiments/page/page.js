/* The page: what it shows follows from the JSON block (or, live, from the server) and `state`. */

let D = JSON.parse($("data").textContent);
const state = { label: null, step: 0, client: null, colour: "loss", axis: "server_round", seeds: false, follow: true };
let seen = {};

function view(label) {
  const of = label === undefined ? state.label : label;
  if (!of || !D.views[of]) return null;
  if (!seen[of]) {
    const v = D.views[of];
    seen[of] = {
      rounds: v.rounds,
      evaluations: v.evaluations,
      rankedBy: v.ranked_by,
      states: decode(v.states, Uint8Array),
      others: decode(v.others, Uint16Array),
      similarities: decode(v.similarities, Int8Array),
      values: dequantise(v.values),
      losses: dequantise(v.losses),
      counts: v.counts ? decode(v.counts, Uint32Array) : null,
      plane: v.plane ? decode(v.plane.steps, Int16Array) : null,
      unit: v.plane ? v.plane.unit : 1,
      kernel: v.kernel,
      matrices: {},
      participation: v.participation
        ? { edges: v.participation.edges, shares: decode(v.participation.shares, Uint8Array) }
        : null,
    };
  }
  return seen[of];
}

const N = () => D.clients.names.length;
const at = (i) => state.step * N() + i;
const currentRound = () => { const v = D.views ? view() : null; return v && v.rounds.length ? v.rounds[state.step] : 0; };
const isSelected = (code) => D.reasons[code].word === "selected";
const isDark = () => document.documentElement.dataset.theme === "dark";
const lineColour = (s) => (isDark() ? s.dark : s.colour);
const style = (label) => D.schedulers.find((s) => s.label === label);
const clientName = (i) => `client ${D.clients.names[i]}` + groupText(i);

function groupText(i) {
  const groups = D.clients.groups;
  if (!groups || groups[i] === null || groups[i] === undefined) return "";
  return ` (${D.clients.group_word} ${D.clients.group_names[groups[i]]})`;
}

const shortened = (text) => (text.length > 24 ? `${text.slice(0, 23)}…` : text);

/* Why a client is in the cohort or not, as a sentence. */
function why(i) {
  const v = view();
  const reason = D.reasons[v.states[at(i)]];
  const other = v.others[at(i)];
  const words = {
    other: other < N() ? D.clients.names[other] : "another",
    similarity: (v.similarities[at(i)] / 100).toFixed(2),
    ranked_by: v.rankedBy || "score",
  };
  return reason.text.replace(/\{(\w+)\}/g, (_, word) => words[word]);
}

function facts(i) {
  const v = view(), found = [];
  if (v.values) found.push(`${D.metric.name} ${fixed(v.values[at(i)])}`);
  if (v.losses) found.push(`loss ${fixed(v.losses[at(i)])}`);
  if (v.counts) found.push(`${D.clients.counted} ${count(v.counts[at(i)])} times by round ${count(currentRound())}`);
  return found.join(", ");
}

function sentence(i) {
  const known = facts(i), name = clientName(i);
  return `${name[0].toUpperCase()}${name.slice(1)}: ${why(i)}.` + (known ? `\n${known}.` : "");
}

/* ---- the head of the page ---- */

function showHead() {
  document.title = D.title;
  $("kind").textContent = D.kind === "federation" ? "adcs: a federation" : "adcs: a comparison of schedulers";
  $("title").textContent = D.title;
  $("subtitle").textContent = D.subtitle;
  replaceChildren($("verdict"), D.verdict.map((text) => element("p", text)));
  replaceChildren($("notes"), D.notes.map((text) => element("p", text)));
  if (!D.status) showAlerts(D.alerts || []);
}

/* The alerts, if they have changed: screen readers read them out each time. */
function showAlerts(texts) {
  if ([...$("alerts").children].map((p) => p.textContent).join("\n") === texts.join("\n")) return;
  replaceChildren($("alerts"), texts.map((text) => element("p", text)));
}

/* Fills a list; one that is the same already stays, because it may be open. */
function options(select, pairs, chosen) {
  const same = select.options.length === pairs.length
    && pairs.every(([value, text], i) => select.options[i].value === String(value) && select.options[i].text === String(text));
  if (!same) replaceChildren(select, pairs.map(([value, text]) => element("option", text, { value })));
  if (chosen !== null && chosen !== undefined) select.value = chosen;
}

function showControls() {
  const labels = D.schedulers.map((s) => s.label);
  if (!labels.includes(state.label)) state.label = D.proposed && labels.includes(D.proposed) ? D.proposed : labels[0] || null;
  options($("scheduler"), labels.map((l, i) => [i, l]), Math.max(0, labels.indexOf(state.label)));
  options($("client"), [["", "none"], ...D.clients.names.map((n, i) => [i, n])], state.client === null ? "" : state.client);
  const v = view();
  const colours = [];
  if (v && v.losses) colours.push(["loss", "by loss"]);
  if (v && v.values) colours.push(["value", `by ${D.metric.name}`]);
  if (D.clients.groups) colours.push(["group", `by ${D.clients.group_word}`]);
  colours.push(["reason", "by reason"]);
  if (!colours.some(([key]) => key === state.colour)) state.colour = colours[0][0];
  options($("colour"), colours, state.colour);
  options($("axis"), Object.entries(D.curves.axes), state.axis);
  $("seeds-label").hidden = !D.curves.seeds;
  const slider = $("slider");
  const last = Math.max(0, (v ? v.rounds.length : 1) - 1);
  slider.max = last;
  if (state.follow) state.step = lastCohort(v, last);
  state.step = Math.min(state.step, last);
  slider.value = state.step;
  slider.disabled = last === 0;
}

/* The last step that has a cohort: after the last round there is none. */
function lastCohort(v, last) {
  if (!v || last < 1) return last;
  return D.reasons[v.states[last * N()]].word === "no cohort" ? last - 1 : last;
}

/* ---- curves ---- */

const hits = new Map();

function showLegend() {
  const key = JSON.stringify(D.schedulers.map((s) => [s.label, lineColour(s)]));
  if ($("legend").dataset.key !== key) {
    $("legend").dataset.key = key;
    replaceChildren($("legend"), D.schedulers.map((s) => {
      const button = element("button", null, { type: "button" });
      button.appendChild(sample(lineColour(s), s.dash));
      button.appendChild(element("span", s.label));
      button.addEventListener("click", () => choose(s.label));
      return button;
    }));
  }
  D.schedulers.forEach((s, i) => $("legend").children[i].setAttribute("aria-pressed", String(s.label === state.label)));
}

let panels = "";

function buildCurves() {
  const fields = JSON.stringify(D.curves.fields);
  if (fields !== panels) makePanels();
  panels = fields;
  const c = D.curves, notes = [];
  if (c.of_points > c.points) notes.push(`Curves show ${count(c.points)} of ${count(c.of_points)} evaluations.`);
  if (c.note) notes.push(c.note);
  if ($("curves").children.length) notes.push("The first evaluations may lie outside a panel.");
  const hint = element("span", $("curves").children.length ? "Click a curve, or use the arrow keys, to move the round. " : "", { class: "hint" });
  replaceChildren($("curves-note"), [hint, element("span", notes.join(" "))]);
}

function makePanels() {
  const boxes = Object.keys(D.curves.fields).map((field) => {
    const figure = element("figure");
    const title = element("h3", D.curves.fields[field]);
    const canvas = element("canvas", null, { tabindex: "0", role: "img", "data-field": field });
    const details = element("details", null, { "data-field": field });
    details.appendChild(element("summary", "Curve as a table"));
    const inner = element("div");
    details.appendChild(inner);
    details.addEventListener("toggle", refreshOpenTables);
    figure.append(title, canvas, details);
    canvas.addEventListener("pointermove", (event) => curveHover(event, field));
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("click", (event) => curveClick(event, field));
    canvas.addEventListener("keydown", stepKeys);
    return figure;
  });
  replaceChildren($("curves"), boxes);
}

function curveBox(field) {
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const line of Object.values(D.curves.lines)) {
    const xs = line.x[state.axis], parts = line[field];
    if (!xs || !parts) continue;
    const skip = Math.floor(xs.length / 20);
    xs.forEach((x, i) => {
      if (x === null) return;
      x0 = Math.min(x0, x);
      x1 = Math.max(x1, x);
      if (i < skip) return;
      for (const part of parts) if (part[i] !== null) { y0 = Math.min(y0, part[i]); y1 = Math.max(y1, part[i]); }
    });
  }
  if (!(x1 > x0)) x1 = x0 + 1;
  if (!Number.isFinite(x0)) { x0 = 0; x1 = 1; }
  if (!Number.isFinite(y0)) { y0 = 0; y1 = 1; }
  const pad = (y1 - y0 || 0.1) * 0.05;
  return { x0, x1, y0: y0 - pad, y1: y1 + pad };
}

/* Where a round lies on the axis, for a scheduler: between the points that surround it. */
function axisAt(line, round) {
  const rounds = line.x.server_round, xs = line.x[state.axis];
  if (xs === rounds) return round;
  let a = null, b = null;
  for (let i = 0; i < rounds.length; i++) {
    if (xs[i] === null) continue;
    if (rounds[i] <= round) a = i;
    if (rounds[i] >= round) { b = i; break; }
  }
  if (a === null || b === null) return a === null ? (b === null ? null : xs[b]) : xs[a];
  return a === b ? xs[a] : xs[a] + ((xs[b] - xs[a]) * (round - rounds[a])) / (rounds[b] - rounds[a]);
}

function drawCurves() {
  for (const canvas of document.querySelectorAll("#curves canvas")) {
    const field = canvas.dataset.field;
    const area = surface(canvas, 230), pen = area.pen;
    const frame = axes(area, curveBox(field), { x: D.curves.axes[state.axis] });
    hits.set(field, frame);
    clip(pen, frame);
    const order = [...D.schedulers].sort((a, b) => (a.label === state.label) - (b.label === state.label));
    for (const s of order) {
      const line = D.curves.lines[s.label];
      if (!line || !line[field]) continue;
      const xs = line.x[state.axis], mine = s.label === state.label;
      const [mean, low, high] = line[field];
      pen.setLineDash([]);
      pen.fillStyle = pen.strokeStyle = lineColour(s);
      if (low) { pen.globalAlpha = mine ? 0.22 : 0.1; band(pen, frame, xs, low, high); }
      if (state.seeds && D.curves.seeds) {
        pen.globalAlpha = mine ? 0.6 : 0.25;
        pen.lineWidth = 0.8;
        const along = D.curves.seeds.x.map((round) => axisAt(line, round));
        for (const ys of D.curves.seeds.lines[s.label][field]) polyline(pen, frame, along, ys);
      }
      pen.globalAlpha = 1;
      pen.lineWidth = mine ? 3 : 1.6;
      pen.setLineDash(s.dash);
      polyline(pen, frame, xs, mean);
    }
    pen.setLineDash([4, 3]);
    pen.lineWidth = 1;
    pen.strokeStyle = css("--ink");
    const line = D.curves.lines[state.label];
    const x = line ? axisAt(line, currentRound()) : null;
    if (x !== null) { pen.beginPath(); pen.moveTo(frame.px(x), frame.top); pen.lineTo(frame.px(x), frame.top + frame.h); pen.stroke(); }
    pen.restore();
    pen.setLineDash([]);
    canvas.setAttribute("aria-label", `${D.curves.fields[field]} against ${D.curves.axes[state.axis]}. ` + lastValues(field));
  }
}

function lastValues(field) {
  return Object.entries(D.curves.lines).map(([label, line]) => {
    const known = (line[field] || [[]])[0].filter((y) => y !== null);
    return `${label} ends at ${fixed(known[known.length - 1])}`;
  }).join("; ");
}

function nearestIndex(xs, x) {
  let best = -1;
  xs.forEach((value, i) => { if (value !== null && (best < 0 || Math.abs(value - x) < Math.abs(xs[best] - x))) best = i; });
  return best;
}

function curveHover(event, field) {
  const frame = hits.get(field);
  const x = frame.toX(event.offsetX);
  const rows = D.schedulers.filter((s) => D.curves.lines[s.label] && D.curves.lines[s.label][field]).map((s) => {
    const line = D.curves.lines[s.label];
    const i = nearestIndex(line.x[state.axis], x);
    const parts = line[field].map((p) => p[i]);
    return { label: s.label, x: line.x[state.axis][i], y: parts[0], low: parts[1], high: parts[2] };
  }).sort((a, b) => (D.metric.lower_is_better ? 1 : -1) * (a.y - b.y));
  const lines = rows.map((r) => `${r.label}: ${fixed(r.y)}` + (r.low !== undefined && r.low !== null ? ` [${fixed(r.low)}, ${fixed(r.high)}]` : ""));
  const own = rows.find((r) => r.label === state.label) || rows[0];
  if (!own || !Number.isFinite(own.x)) { hideTip(); return; }
  const place = tickText(own.x >= 1000 ? own.x : parseFloat(own.x.toPrecision(4))); // of the evaluation, not of the pointer
  showTip(event, `${D.curves.axes[state.axis]} ${place}\n${lines.join("\n")}`);
}

function curveClick(event, field) {
  const line = D.curves.lines[state.label];
  if (!line) return;
  const i = nearestIndex(line.x[state.axis], hits.get(field).toX(event.offsetX));
  moveToRound(line.x.server_round[i]);
}

function curveTable(field) {
  const shown = D.schedulers.filter((s) => D.curves.lines[s.label] && D.curves.lines[s.label][field]);
  if (!shown.length) return element("p", "No values yet.");
  const first = D.curves.lines[shown[0].label].x.server_round;
  const every = Math.max(1, Math.ceil(first.length / 50));
  const rows = [];
  first.forEach((round, i) => {
    if (i % every && i !== first.length - 1) return;
    rows.push([count(round), ...shown.map((s) => {
      const parts = D.curves.lines[s.label][field].map((p) => p[i]);
      return fixed(parts[0] === null ? NaN : parts[0]) + (parts.length > 1 && parts[1] !== null ? ` [${fixed(parts[1])}, ${fixed(parts[2])}]` : "");
    })]);
  });
  return table(["round", ...shown.map((s) => s.label)], rows, D.curves.fields[field]);
}

/* ---- tables and costs ---- */

function showTables() {
  const parts = [];
  for (const t of D.tables) {
    const made = table(t.heads, t.rows, t.title);
    for (const row of made.querySelectorAll("tbody tr")) {
      const label = row.cells[0].textContent;
      if (!D.schedulers.some((s) => s.label === label)) continue;
      row.tabIndex = 0;
      row.dataset.label = label;
      row.addEventListener("click", () => choose(label));
      row.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(label); });
    }
    parts.push(made, element("p", t.note, { class: "note" }));
  }
  const rows = () => [...document.querySelectorAll("#tables tr[data-label]")];
  const focused = rows().indexOf(document.activeElement);
  replaceChildren($("tables"), parts);
  if (focused >= 0 && rows()[focused]) rows()[focused].focus({ preventScroll: true });
}

function markRows() {
  for (const row of document.querySelectorAll("#tables tr[data-label]")) row.classList.toggle("mine", row.dataset.label === state.label);
}

function showCosts() {
  replaceChildren($("costs"), D.costs.map((cost) => {
    const box = element("div");
    box.appendChild(element("h3", cost.name));
    const list = element("dl", null, { class: "cost" });
    const most = Math.max(...cost.values.filter((v) => v !== null), 0) || 1;
    cost.labels.forEach((label, i) => {
      list.appendChild(element("dt", label));
      const entry = element("dd"), bar = element("span", null, { class: "bar", "aria-hidden": "true" });
      bar.style.width = `calc(${(cost.values[i] || 0) / most} * (100% - 6rem))`; // 6rem for the number
      const s = style(label);
      bar.style.background = s ? lineColour(s) : css("--accent");
      entry.append(bar, element("span", cost.texts[i]));
      list.appendChild(entry);
    });
    box.appendChild(list);
    return box;
  }));
  const held = D.cost_table, full = $("cost-table");
  full.hidden = !held || held.heads.length < 2;
  if (!full.hidden) replaceChildren(full.querySelector("div"), [table(held.heads, held.rows, held.title)]);
}

function showSettings() {
  const parts = [];
  if (D.command) parts.push(element("p", "A command that makes it:"), element("pre", D.command));
  else if (D.made_by) parts.push(element("p", "Made by a server app with:"), element("pre", D.made_by));
  const details = element("details");
  details.appendChild(element("summary", "All settings"));
  details.appendChild(table(["setting", "value"], D.settings, "Settings"));
  const versions = Object.entries(D.versions).map(([name, version]) => `${name} ${version}`).join(", ");
  parts.push(details, element("p", `Run folder ${D.folder}. Versions: ${versions}.`, { class: "note" }));
  replaceChildren($("settings"), parts);
}

/* ---- clients in the plane ---- */

let dots = [];

function limits(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (Number.isFinite(v)) { if (v < low) low = v; if (v > high) high = v; }
  return Number.isFinite(low) ? [low, high] : [0, 1];
}

function clientColour(i, range) {
  const v = view();
  if (state.colour === "group") {
    const group = D.clients.groups ? D.clients.groups[i] : 0;
    if (group === null || group === undefined) return { fill: css("--line"), shape: 0 };
    return { fill: GROUPS[group % GROUPS.length], shape: Math.floor(group / GROUPS.length) % 4 };
  }
  if (state.colour === "reason") {
    const words = D.reason_words, k = words.indexOf(D.reasons[v.states[at(i)]].word);
    return { fill: GROUPS[k % GROUPS.length], shape: Math.floor(k / GROUPS.length) % 4 };
  }
  const column = state.colour === "loss" ? v.losses : v.values;
  const value = column ? column[at(i)] : NaN;
  if (!Number.isFinite(value)) return { fill: css("--line"), shape: 0 };
  return { fill: rgb(sequential((value - range[0]) / (range[1] - range[0] || 1))), shape: 0 };
}

/* Coordinates at the step: the plane, or selections and metric where no kernel is known. */
function coordinates() {
  const v = view(), n = N();
  if (v.plane) {
    const x = new Float64Array(n), y = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      const p = v.plane[2 * at(i)], q = v.plane[2 * at(i) + 1];
      x[i] = p === -32768 ? NaN : p / v.unit;
      y[i] = q === -32768 ? NaN : q / v.unit;
    }
    return { x, y, plane: true };
  }
  const x = Float64Array.from({ length: n }, (_, i) => (v.counts ? v.counts[at(i)] : i));
  const column = v.values || v.losses;
  const y = Float64Array.from({ length: n }, (_, i) => (column ? column[at(i)] : 0));
  return { x, y, plane: false };
}

function drawPlane() {
  const canvas = $("plane").querySelector("canvas"), v = view(), n = N();
  const area = surface(canvas, area_height(canvas)), pen = area.pen;
  dots = [];
  if (!v || !v.rounds.length) return;
  const { x, y, plane } = coordinates();
  let frame;
  if (plane) {
    if (!v.extent) {
      let far = 0.05;
      for (const p of v.plane) if (p !== -32768) far = Math.max(far, Math.abs(p) / v.unit);
      v.extent = far * 1.08;
    }
    const side = Math.min(area.width, area.height), e = v.extent;
    const scale = (side - 30) / (2 * e);
    frame = { px: (a) => area.width / 2 + a * scale * Math.min(1.6, area.width / side), py: (b) => area.height / 2 - b * scale };
    pen.strokeStyle = css("--line");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(0, area.height / 2); pen.lineTo(area.width, area.height / 2);
    pen.moveTo(area.width / 2, 0); pen.lineTo(area.width / 2, area.height);
    pen.stroke();
  } else {
    const [x0, x1] = limits(x), [y0, y1] = limits(y), px = (x1 - x0 || 1) * 0.06, py = (y1 - y0 || 0.1) * 0.1;
    frame = axes({ ...area, height: area.height - SCALE }, { x0: x0 - px, x1: x1 + px, y0: y0 - py, y1: y1 + py },
      { x: v.counts ? `times ${D.clients.counted}` : "client", y: v.values ? D.metric.name : v.losses ? "loss" : "" });
  }
  const column = state.colour === "loss" ? v.losses : v.values;
  const range = column ? limits(column.subarray(state.step * n, (state.step + 1) * n)) : [0, 1];
  let most = 1;
  if (v.counts) for (let i = 0; i < n; i++) most = Math.max(most, v.counts[at(i)]);
  const now = nowCohort();
  const small = n > 300 ? 0.55 : n > 100 ? 0.75 : 1;
  const order = Array.from({ length: n }, (_, i) => i).sort((a, b) => isSelected(v.states[at(a)]) - isSelected(v.states[at(b)]));
  const places = new Map();
  for (const i of order) if (Number.isFinite(x[i]) && Number.isFinite(y[i])) places.set(i, { x: frame.px(x[i]), y: frame.py(y[i]) });
  const moved = places.size <= 200 && spread([...places.values()], 13, 6);
  for (const i of order) {
    if (!places.has(i)) continue;
    const selected = isSelected(v.states[at(i)]);
    const share = v.counts ? Math.sqrt(v.counts[at(i)] / most) : 0.5;
    const r = small * (4 + 8 * share), cx = places.get(i).x, cy = places.get(i).y;
    const { fill, shape } = clientColour(i, range);
    pen.globalAlpha = selected ? 1 : 0.45;
    pen.fillStyle = fill;
    point(pen, cx, cy, r, shape);
    pen.fill();
    pen.lineWidth = selected ? 2.2 : 0.8;
    pen.strokeStyle = selected ? css("--ring") : css("--soft");
    pen.stroke();
    pen.globalAlpha = 1;
    if (now && now.has(i)) {
      pen.setLineDash([3, 2]);
      pen.lineWidth = 1.6;
      pen.strokeStyle = css("--accent");
      point(pen, cx, cy, r + 4, 0);
      pen.stroke();
      pen.setLineDash([]);
    }
    if (i === state.client) {
      pen.lineWidth = 2.5;
      pen.strokeStyle = css("--warn");
      point(pen, cx, cy, r + 5, 0);
      pen.stroke();
      pen.fillStyle = css("--ink");
      const name = shortened(D.clients.names[i]), fits = cx + r + 8 + pen.measureText(name).width < area.width;
      pen.textAlign = fits ? "left" : "right";
      pen.textBaseline = "middle";
      pen.fillText(name, fits ? cx + r + 8 : cx - r - 8, cy);
    }
    dots.push({ i, x: cx, y: cy, r });
  }
  const byNumber = column && state.colour !== "group" && state.colour !== "reason";
  const anyNumber = byNumber && column.subarray(state.step * n, (state.step + 1) * n).some(Number.isFinite);
  if (anyNumber) drawScale(pen, area, range);
  showKey();
  const missing = n - dots.length;
  const words = [plane
    ? "Each mark is a client, near to those whose updates point the same way (the first two principal components of the kernel)."
    : "No kernel is recorded here: clients are placed by how often they were selected and how well they are served.",
  "A strong outline marks the selected clients, faint ones are left out; the size is how often a client " + (D.clients.counted === "trained" ? "has trained." : "was selected.")];
  if (byNumber && !anyNumber) words.push(`No client has a ${state.colour === "loss" ? "loss" : D.metric.name} at this round.`);
  if (moved) words.push("Marks that would cover each other are moved apart a little.");
  if (now) words.push("A dashed ring marks those at work now.");
  if (missing) words.push(`${missing} clients are not placed: nothing is known of their updates.`);
  if (v.evaluations > v.rounds.length) words.push(`The slider has ${v.rounds.length} of ${count(v.evaluations)} evaluated rounds.`);
  if (D.curves.seeds) words.push(`Clients are those of seed ${D.clients.seed}.`);
  $("plane").querySelector("figcaption").textContent = words.join(" ");
  canvas.setAttribute("aria-label", `Clients of ${state.label} at round ${count(currentRound())}. ${cohortSummary()} Arrow keys move from client to client.`);
}

const area_height = (canvas) => Math.max(260, Math.min(430, canvas.clientWidth * 0.85));

const SCALE = 44; // the height of the colour scale with its name, below axes

function drawScale(pen, area, range) {
  const w = 110, left = area.width - w - 8, top = area.height - 26;
  for (let k = 0; k < w; k++) { pen.fillStyle = rgb(sequential(k / (w - 1))); pen.fillRect(left + k, top, 1.5, 8); }
  pen.fillStyle = css("--soft");
  pen.textBaseline = "top";
  pen.textAlign = "left";
  pen.fillText(fixed(range[0], 2), left, top + 10);
  pen.textAlign = "right";
  pen.fillText(fixed(range[1], 2), left + w, top + 10);
  pen.textAlign = "center";
  pen.textBaseline = "bottom";
  pen.fillText(state.colour === "loss" ? "loss" : D.metric.name, left + w / 2, top - 2);
}

/* What the colours and shapes of groups or reasons mean, by which clients are there. */
function showKey() {
  const entries = [];
  if (state.colour === "group" && D.clients.groups) {
    D.clients.group_names.slice(0, 40).forEach((name, k) => entries.push([k, `${D.clients.group_word} ${name}`]));
    if (D.clients.group_names.length > 40) entries.push([null, `and ${D.clients.group_names.length - 40} more`]);
  } else if (state.colour === "reason") {
    const present = byReason();
    D.reason_words.forEach((word, k) => { if (present.has(word)) entries.push([k, word]); });
  }
  replaceChildren($("plane").querySelector(".key"), entries.map(([k, text]) => {
    const item = element("li");
    if (k !== null) item.appendChild(mark(GROUPS[k % GROUPS.length], Math.floor(k / GROUPS.length) % 4));
    item.appendChild(element("span", text));
    return item;
  }));
}

function byReason() {
  const v = view(), found = new Map();
  for (let i = 0; i < N(); i++) {
    const word = D.reasons[v.states[at(i)]].word;
    if (!found.has(word)) found.set(word, []);
    found.get(word).push(i);
  }
  return found;
}

function cohortSummary() {
  const groups = byReason(), parts = [];
  const inside = groups.get("selected") || [];
  parts.push(inside.length ? `${inside.length} of ${count(N())} clients are selected` : "Nobody is selected");
  const left = [...groups].filter(([word]) => word !== "selected" && word !== "no cohort").sort((a, b) => b[1].length - a[1].length);
  if (left.length) parts.push(`left out ${left.map(([word, who]) => `${D.left_out[word]} (${who.length})`).join(", ")}`);
  return `${parts.join("; ")}.`;
}

function names(list) {
  const shown = list.slice(0, 30).map((i) => D.clients.names[i]).join(", ");
  return list.length > 30 ? `${shown} and ${list.length - 30} more` : shown;
}

function showCohort() {
  const v = view(), parts = [];
  if (!v || !v.rounds.length) { replaceChildren($("cohort"), [element("p", "No round is evaluated yet.")]); return; }
  parts.push(element("p", `Round ${count(currentRound())}, ${state.label}: ${cohortSummary()}`));
  const box = element("p", state.client === null ? "Point at a client, or pick one above, to see why it was selected or left out." : sentence(state.client), { class: state.client === null ? "now hint" : "now", id: "why" });
  box.style.whiteSpace = "pre-line";
  parts.push(box);
  const list = element("dl");
  for (const [word, who] of [...byReason()].sort((a, b) => (b[0] === "selected") - (a[0] === "selected") || b[1].length - a[1].length)) {
    list.append(element("dt", `${word} (${who.length})`), element("dd", names(who)));
  }
  parts.push(list);
  replaceChildren($("cohort"), parts);
}

function clientTable() {
  const v = view(), rows = [];
  const many = Math.min(N(), 1000);
  for (let i = 0; i < many; i++) {
    rows.push([D.clients.names[i], D.clients.groups ? D.clients.group_names[D.clients.groups[i]] || "–" : "–",
      v.values ? fixed(v.values[at(i)]) : "–", v.losses ? fixed(v.losses[at(i)]) : "–",
      v.counts ? count(v.counts[at(i)]) : "–", why(i)]);
  }
  return table(["client", D.clients.group_word, D.metric.name, "loss", `times ${D.clients.counted}`, "at this round"], rows, `Clients at round ${count(currentRound())}`);
}

function dotAt(x, y) {
  let best = null, far = 16;
  for (const d of dots) { const away = Math.hypot(d.x - x, d.y - y) - d.r * 0.5; if (away < far) { far = away; best = d; } }
  return best;
}

/* ---- the kernel ---- */

function kernelStep() {
  const v = view();
  if (!v || !v.kernel || !v.kernel.steps.length) return null;
  let found = v.kernel.steps[0];
  for (const s of v.kernel.steps) if (s.round <= currentRound()) found = s;
  if (!found.matrix) {
    const n = found.clients.length, packed = decode(found.cosines, Int8Array);
    found.matrix = new Float32Array(n * n);
    let k = 0;
    for (let i = 0; i < n; i++) {
      found.matrix[i * n + i] = 1;
      for (let j = i + 1; j < n; j++) found.matrix[i * n + j] = found.matrix[j * n + i] = packed[k++] / 127;
    }
  }
  return found;
}

let kernelFrame = null;

function drawKernel() {
  const figure = $("kernel"), canvas = figure.querySelector("canvas"), found = kernelStep();
  figure.hidden = !found;
  if (!found) return;
  const area = surface(canvas, Math.min(360, Math.max(120, canvas.clientWidth) - 50)), pen = area.pen;
  const n = found.clients.length, side = Math.min(area.width - 60, area.height - 10);
  const palette = Array.from({ length: 255 }, (_, k) => diverging((k - 127) / 127));
  cells(pen, n, n, (r, c) => palette[Math.round(found.matrix[found.order[r] * n + found.order[c]] * 127) + 127], 4, 4, side, side);
  kernelFrame = { side, n, found };
  const index = found.order.findIndex((k) => found.clients[k] === state.client);
  if (index >= 0) {
    pen.strokeStyle = css("--warn");
    pen.lineWidth = 1.5;
    const cell = side / n;
    pen.strokeRect(4, 4 + index * cell, side, Math.max(cell, 2));
    pen.strokeRect(4 + index * cell, 4, Math.max(cell, 2), side);
  }
  for (let k = 0; k < side; k++) { pen.fillStyle = rgb(diverging(1 - (2 * k) / side)); pen.fillRect(side + 14, 4 + k, 10, 1.5); }
  pen.fillStyle = css("--soft");
  pen.textAlign = "left";
  pen.textBaseline = "top";
  pen.fillText("1", side + 28, 4);
  pen.textBaseline = "middle";
  pen.fillText("0", side + 28, 4 + side / 2);
  pen.textBaseline = "bottom";
  pen.fillText("-1", side + 28, 4 + side);
  const part = n < N() ? `, ${n} of ${count(N())} clients` : "";
  figure.querySelector("figcaption").textContent =
    `Cosines between clients' updates at round ${count(found.round)}${part}, similar clients beside each other. A block of the warm colour is a cluster: one of its clients speaks for the others.`;
  canvas.setAttribute("aria-label", `Similarity of clients at round ${count(found.round)}. ${nearestText()}`);
}

function neighbours(found) {
  const n = found.clients.length;
  return found.clients.map((client, i) => {
    let best = -1;
    for (let j = 0; j < n; j++) if (j !== i && (best < 0 || found.matrix[i * n + j] > found.matrix[i * n + best])) best = j;
    return [client, best < 0 ? null : found.clients[best], best < 0 ? NaN : found.matrix[i * n + best]];
  });
}

function nearestText() {
  const found = kernelStep();
  const [a, b, c] = neighbours(found).reduce((x, y) => (y[2] > x[2] ? y : x));
  return b === null ? "" : `The most similar clients are ${D.clients.names[a]} and ${D.clients.names[b]}, ${fixed(c, 2)}.`;
}

function kernelTable() {
  const rows = neighbours(kernelStep()).map(([a, b, c]) => [D.clients.names[a], b === null ? "–" : D.clients.names[b], fixed(c, 2)]);
  return table(["client", "most similar client", "cosine"], rows, "Most similar clients");
}

/* ---- participation ---- */

let partFrame = null;

function servedOrder(v) {
  if (v.order) return v.order;
  const n = N(), steps = v.rounds.length;
  const order = Array.from({ length: n }, (_, i) => i);
  if (v.values && steps) {
    const sign = D.metric.lower_is_better ? -1 : 1, first = Math.max(0, steps - Math.max(1, Math.floor(steps / 10)));
    const mean = order.map((i) => { let sum = 0, k = 0; for (let s = first; s < steps; s++) { const x = v.values[s * n + i]; if (Number.isFinite(x)) { sum += x; k++; } } return k ? (sign * sum) / k : Infinity; });
    order.sort((a, b) => mean[a] - mean[b] || a - b);
  }
  v.order = order;
  return order;
}

function drawParticipation() {
  const figure = $("participation"), canvas = figure.querySelector("canvas"), v = view();
  figure.hidden = !v || !v.participation;
  if (figure.hidden) return;
  const { edges, shares } = v.participation, columns = edges.length - 1, n = N();
  const area = surface(canvas, Math.max(200, Math.min(360, 30 + n * 9))), pen = area.pen;
  const left = 26, top = 4, w = area.width - left - 6, h = area.height - top - 34;
  const order = servedOrder(v), empty = channels(css("--panel")), full = channels(css("--accent"));
  const palette = Array.from({ length: 256 }, (_, k) => mix(empty, full, k ? 0.12 + (0.88 * k) / 255 : 0));
  cells(pen, n, columns, (r, c) => palette[shares[order[r] * columns + c]], left, top, w, h);
  const row = h / n, behind = Math.max(1, Math.floor(n / 5));
  if (v.values) {
    pen.fillStyle = css("--warn");
    pen.fillRect(left - 7, top, 4, behind * row);
    pen.save();
    pen.translate(9, top + Math.min(h / 2, Math.max(30, (behind * row) / 2)));
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText("worst-off", 0, 0);
    pen.restore();
  }
  const end = edges[columns] || 1, now = Math.min(currentRound(), end);
  pen.strokeStyle = css("--ink");
  pen.setLineDash([4, 3]);
  pen.beginPath();
  pen.moveTo(left + (w * now) / end, top);
  pen.lineTo(left + (w * now) / end, top + h);
  pen.stroke();
  pen.setLineDash([]);
  const mine = order.indexOf(state.client);
  if (mine >= 0) { pen.strokeStyle = css("--warn"); pen.lineWidth = 1.5; pen.strokeRect(left, top + mine * row, w, Math.max(row, 2)); }
  pen.fillStyle = css("--soft");
  pen.textBaseline = "top";
  for (const t of ticks(0, end, 4)) { pen.textAlign = t === 0 ? "left" : "center"; if (t <= end) pen.fillText(tickText(t), Math.min(left + (w * t) / end, left + w - 14), top + h + 4); }
  pen.textAlign = "center";
  pen.fillText("round", left + w / 2, top + h + 18);
  partFrame = { left, top, w, h, end, row, order, columns };
  const wide = Math.round(end / columns);
  figure.querySelector("figcaption").textContent =
    `A row is a client${v.values ? ", the worst-off first" : ""}; the stronger the colour, the larger the share of rounds in which ${state.label} selected it` +
    (wide > 1 ? `, over about ${count(wide)} rounds each.` : ".");
  canvas.setAttribute("aria-label", `Participation of ${n} clients with ${state.label}. ${participationText(v)}`);
}

function totals(v) {
  const { edges, shares } = v.participation, columns = edges.length - 1, end = edges[columns] || 1;
  return Array.from({ length: N() }, (_, i) => {
    let sum = 0;
    for (let c = 0; c < columns; c++) sum += (shares[i * columns + c] / 255) * (edges[c + 1] - edges[c]);
    return sum / end;
  });
}

function participationText(v) {
  const all = totals(v), low = all.indexOf(Math.min(...all)), high = all.indexOf(Math.max(...all));
  return `Least: ${clientName(low)}, ${Math.round(100 * all[low])} % of rounds; most: ${clientName(high)}, ${Math.round(100 * all[high])} %.`;
}

function participationTable() {
  const v = view(), all = totals(v), last = (v.rounds.length - 1) * N();
  const rows = servedOrder(v).slice(0, 1000).map((i) => [D.clients.names[i], `${(100 * all[i]).toFixed(1)} %`, v.values ? fixed(v.values[last + i]) : "–"]);
  return table(["client", "share of rounds", `${D.metric.name} at the end`], rows, `Participation with ${state.label}, worst-off first`);
}

/* ---- tooltips, keys, links between figures ---- */

function showTip(event, text) {
  const tip = $("tip");
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - box.width - 6))}px`;
  tip.style.top = `${event.clientY + 16 + box.height > window.innerHeight ? event.clientY - box.height - 10 : event.clientY + 16}px`;
}

function hideTip() { $("tip").hidden = true; }

function choose(label) {
  const round = currentRound();
  state.label = label;
  showControls();
  if (!state.follow) moveToRound(round, false);
  showLegend();
  markRows();
  draw();
}

function pickClient(i) {
  state.client = i;
  $("client").value = i === null ? "" : i;
  draw();
}

function moveToRound(round, redraw) {
  const v = view();
  if (!v || !v.rounds.length) return;
  let best = 0;
  v.rounds.forEach((r, i) => { if (Math.abs(r - round) < Math.abs(v.rounds[best] - round)) best = i; });
  setStep(best, redraw);
}

function setStep(step, redraw) {
  const v = view(), last = v ? v.rounds.length - 1 : 0;
  state.step = Math.max(0, Math.min(step, last));
  state.follow = state.step >= lastCohort(v, last);
  $("slider").value = state.step;
  if (redraw !== false) draw();
}

function stepKeys(event) {
  const move = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10 }[event.key];
  if (event.key === "Home") setStep(0);
  else if (event.key === "End") setStep(1e9);
  else if (move) setStep(state.step + move);
  else return;
  event.preventDefault();
}

function clientKeys(event) {
  const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!move) return;
  event.preventDefault();
  pickClient(state.client === null ? 0 : (state.client + move + N()) % N());
}

function refreshOpenTables() {
  for (const details of document.querySelectorAll("#curves details[open]")) {
    replaceChildren(details.querySelector("div"), [curveTable(details.dataset.field)]);
  }
  for (const [id, make] of [["plane", clientTable], ["kernel", kernelTable], ["participation", participationTable]]) {
    const details = $(id).querySelector("details");
    if (details.open && !$(id).hidden) replaceChildren(details.querySelector("div"), [make()]);
  }
}

/* Everything that follows the round, the scheduler or the client. */
function draw() {
  const started = performance.now();
  const v = view();
  $("round").textContent = v && v.rounds.length ? `${count(currentRound())} of ${count(D.rounds || v.rounds[v.rounds.length - 1])}` : "none yet";
  $("slider").setAttribute("aria-valuetext", `round ${currentRound()}`);
  drawCurves();
  drawPlane();
  showCohort();
  drawKernel();
  drawParticipation();
  refreshOpenTables();
  document.documentElement.dataset.drawn = (performance.now() - started).toFixed(1);
}

function showAll(round) {
  seen = {};
  showHead();
  showControls();
  if (!state.follow) moveToRound(round, false);
  showLegend();
  if (D.curves.axes[state.axis] === undefined) state.axis = Object.keys(D.curves.axes)[0] || "server_round";
  buildCurves();
  showTables();
  markRows();
  showCosts();
  showSettings();
  draw();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
}

function changeTheme(name) {
  setTheme(name);
  if (!D.schedulers) return; // Live, before the first answer of the server.
  showLegend();
  showCosts();
  draw();
}

function listen() {
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("slider").addEventListener("input", (event) => setStep(Number(event.target.value)));
  $("scheduler").addEventListener("change", (event) => choose(D.schedulers[Number(event.target.value)].label));
  $("client").addEventListener("change", (event) => pickClient(event.target.value === "" ? null : Number(event.target.value)));
  $("colour").addEventListener("change", (event) => { state.colour = event.target.value; draw(); });
  $("axis").addEventListener("change", (event) => { state.axis = event.target.value; draw(); });
  $("seeds").addEventListener("change", (event) => { state.seeds = event.target.checked; draw(); });
  $("theme").addEventListener("click", () => { changeTheme(isDark() ? "light" : "dark"); });
  const plane = $("plane").querySelector("canvas");
  plane.addEventListener("pointermove", (event) => { const d = dotAt(event.offsetX, event.offsetY); if (d) showTip(event, sentence(d.i)); else hideTip(); });
  plane.addEventListener("pointerleave", hideTip);
  plane.addEventListener("click", (event) => { const d = dotAt(event.offsetX, event.offsetY); pickClient(d ? d.i : null); });
  plane.addEventListener("keydown", clientKeys);
  const kernel = $("kernel").querySelector("canvas");
  const cell = (event) => {
    if (!kernelFrame) return null;
    const { side, n, found } = kernelFrame, r = Math.floor(((event.offsetY - 4) / side) * n), c = Math.floor(((event.offsetX - 4) / side) * n);
    return r >= 0 && c >= 0 && r < n && c < n ? { a: found.order[r], b: found.order[c], n, found } : null;
  };
  kernel.addEventListener("pointermove", (event) => {
    const k = cell(event);
    if (k) showTip(event, `${clientName(k.found.clients[k.a])} and ${clientName(k.found.clients[k.b])}: cosine ${fixed(k.found.matrix[k.a * k.n + k.b], 2)}`);
    else hideTip();
  });
  kernel.addEventListener("pointerleave", hideTip);
  kernel.addEventListener("click", (event) => { const k = cell(event); if (k) pickClient(k.found.clients[k.a]); });
  kernel.addEventListener("keydown", clientKeys);
  const part = $("participation").querySelector("canvas");
  const place = (event) => {
    if (!partFrame) return null;
    const f = partFrame, r = Math.floor((event.offsetY - f.top) / f.row), t = (event.offsetX - f.left) / f.w;
    return r >= 0 && r < f.order.length && t >= 0 && t < 1 ? { i: f.order[r], t, f } : null;
  };
  part.addEventListener("pointermove", (event) => {
    const k = place(event), v = view();
    if (!k) { hideTip(); return; }
    const c = Math.min(k.f.columns - 1, Math.floor(k.t * k.f.columns)), e = v.participation.edges;
    showTip(event, `${clientName(k.i)}: selected in ${Math.round((100 * v.participation.shares[k.i * k.f.columns + c]) / 255)} % of rounds ${count(e[c])} to ${count(e[c + 1] - 1)}`);
  });
  part.addEventListener("pointerleave", hideTip);
  part.addEventListener("click", (event) => { const k = place(event); if (k) { state.client = k.i; $("client").value = k.i; moveToRound(k.t * k.f.end); } });
  part.addEventListener("keydown", stepKeys);
  for (const id of ["plane", "kernel", "participation"]) $(id).querySelector("details").addEventListener("toggle", refreshOpenTables);
  let timer = null;
  $("play").addEventListener("click", () => {
    if (timer) { clearInterval(timer); timer = null; }
    else {
      if (state.step >= Number($("slider").max)) setStep(0);
      timer = setInterval(() => { if (state.step >= Number($("slider").max)) $("play").click(); else setStep(state.step + 1); }, 250);
    }
    $("play").setAttribute("aria-pressed", String(Boolean(timer)));
    $("play").textContent = timer ? "Stop" : "Play";
  });
  let pending = null;
  window.addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(draw, 100); });
  window.addEventListener("scroll", hideTip, { passive: true });
  let before = null;
  window.addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; changeTheme("light"); });
  window.addEventListener("afterprint", () => { changeTheme(before); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => { changeTheme(event.matches ? "dark" : "light"); });
}

setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
listen();
if (D.live) watch();
else showAll();
