// What changes on the server changes here: parts as HTML that the server has escaped, cells of the grid one by one.
const letters = { healthy: "", suspect: "?", quarantined: "Q", draining: "D", repairing: "R", validating: "V", retired: "X", unknown: "U", unheard: "N" };

function keepFocus(part, change) {
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const key = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.getAttribute("href") ? `a[href="${CSS.escape(focused.getAttribute("href"))}"]` : "");
  const opened = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
  const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  change();
  for (const id of opened) { const one = document.getElementById(id); if (one) one.open = true; }
  part.querySelectorAll(".scroll").forEach((one, number) => { if (scrolled[number]) one.scrollLeft = scrolled[number]; });
  if (key) part.querySelector(key)?.focus({ preventScroll: true });
}

// The form says which state of the thing its writer has seen: what the page shows, until they begin to write.
function seen(part) {
  const form = document.querySelector("form.deeds");
  const field = form?.elements.seen;
  if (field && !form.contains(document.activeElement) && !form.elements.why?.value) field.value = part.querySelector("data").value;
}

export function start(changed) {
  const page = document.body.dataset.live;
  if (!page || !window.EventSource) return;
  const cells = new Map();
  for (const cell of document.querySelectorAll("#grid .c")) cells.set(cell.title.slice(0, cell.title.indexOf(": ")), cell);
  const lost = document.getElementById("lost");
  const state = document.getElementById("live-state");
  let seq = Number(document.body.dataset.seq);
  let source;

  function update(message) {
    const said = JSON.parse(message.data);
    seq = said.seq;
    for (const [name, html] of Object.entries(said.parts)) {
      const part = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
      if (!part) continue;
      keepFocus(part, () => { part.innerHTML = html; });
      if (name === "seen") seen(part);
      changed(part);
    }
    for (const [name, [word, label]] of Object.entries(said.cells)) {
      const cell = cells.get(name);
      if (!cell) { location.reload(); return; }
      cell.className = `c ${word}`;
      cell.title = label;
      cell.textContent = letters[word] ?? "";
    }
    if (state) state.textContent = `live, as of event ${seq}`;
    document.body.dataset.seq = String(seq);
  }

  function connect() {
    source = new EventSource(`/live?on=${encodeURIComponent(page)}&since=${seq}`);
    source.addEventListener("update", update);
    source.onopen = () => { lost.hidden = true; if (state) state.textContent = `live, as of event ${seq}`; };
    source.onerror = () => {
      lost.hidden = false;
      if (state) state.textContent = "not live";
      // The browser tries again by itself, unless the server refused: then the session is over, and a new look says so.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (!document.hidden) location.reload(); }, 3000);
    };
  }
  connect();
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
}
