/* The run now: a status by server-sent events; the data is fetched again when it has changed. */

let loaded = null;
let loading = false;

/* Clients selected in the round that runs now, if the slider is at the end. */
function nowCohort() {
  const status = D.status;
  if (!status || !state.follow || !status.runs) return null;
  const run = status.runs[state.label];
  return run && run.cohort ? new Set(run.cohort) : null;
}

function chips(list) {
  const box = element("ul", null, { class: "chips" });
  const shown = list.slice(0, 60);
  for (const text of shown) box.appendChild(element("li", text));
  if (list.length > shown.length) box.appendChild(element("li", `and ${list.length - shown.length} more`));
  return box;
}

function showStatus() {
  const status = D.status, parts = [];
  $("live").hidden = !status;
  if (!status) return;
  parts.push(element("p", status.sentence));
  if (status.states) {
    const grid = element("div", null, { class: "states" });
    for (const [word, clients] of status.states) {
      const box = element("div");
      box.appendChild(element("strong", `${word} (${clients.length})`));
      box.appendChild(chips(clients));
      grid.appendChild(box);
    }
    parts.push(grid);
  }
  if (status.progress) {
    for (const [label, done, total] of status.progress) {
      const line = element("p");
      const bar = element("progress", null, { max: total, value: done, "aria-label": label });
      line.append(bar, ` ${label}: round ${count(done)} of ${count(total)}`);
      parts.push(line);
    }
  }
  replaceChildren($("live"), parts);
  replaceChildren($("alerts"), status.alerts.map((text) => element("p", text)));
}

async function load(version) {
  if (loading) return;
  loading = true;
  try {
    const answer = await fetch("data.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(`data.json: ${answer.status}`);
    const status = D.status;
    D = await answer.json();
    D.status = status;
    loaded = version;
    showAll();
    showStatus();
  } finally {
    loading = false;
  }
}

function watch() {
  const source = new EventSource("events");
  source.addEventListener("message", (event) => {
    const status = JSON.parse(event.data);
    D.status = status;
    showStatus();
    if (status.version !== loaded) load(status.version).catch(() => { loaded = null; });
    else drawPlane();
  });
  source.addEventListener("error", () => {
    if (!D.status) D.status = { alerts: [], runs: null };
    D.status.sentence = "The connection to adcs watch is lost; the page tries again.";
    showStatus();
  });
}
