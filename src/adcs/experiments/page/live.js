/* The run now: a status by server-sent events; the data is fetched again when it has changed. */

const RETRY_MS = 2000;
let wanted = null; // the version of the data that the last status names
let loaded = null; // the version of the data that is shown
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
  showAlerts(status.alerts);
}

/* Shows new data; round and client stay what they were, unless the round was the newest. */
function replaceData(data) {
  const round = currentRound(), client = state.client === null ? null : D.clients.names[state.client];
  const status = D.status;
  D = data;
  D.status = status;
  const found = client === null ? -1 : D.clients.names.indexOf(client);
  state.client = found < 0 ? null : found;
  showAll(round);
  showStatus();
}

/* Fetches the data until it is the one that the last status names. */
async function load() {
  if (loading) return;
  loading = true;
  try {
    while (loaded !== wanted) {
      const version = wanted;
      const answer = await fetch("data.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(`data.json: ${answer.status}`);
      replaceData(await answer.json());
      loaded = version;
    }
  } catch (error) {
    setTimeout(load, RETRY_MS);
  } finally {
    loading = false;
  }
}

function watch() {
  const source = new EventSource("events");
  source.addEventListener("message", (event) => {
    D.status = JSON.parse(event.data);
    wanted = D.status.version;
    showStatus();
    if (wanted !== loaded) load();
    else drawPlane();
  });
  source.addEventListener("error", () => {
    if (!D.status) D.status = { alerts: [], runs: null };
    D.status.sentence = "The connection to adcs watch is lost; the page tries again.";
    showStatus();
    if (source.readyState === EventSource.CLOSED) setTimeout(watch, RETRY_MS); // an answer that is no stream
  });
}
