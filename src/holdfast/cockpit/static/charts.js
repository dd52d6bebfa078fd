// Charts by Plotly's packaged script, loaded only on pages that have one. Each is given as JSON by the server.
let loading = null;

function load() {
  if (!loading) {
    loading = new Promise((resolve, reject) => {
      const style = document.createElement("link");
      // Plotly looks for this id and class, and then writes no style of its own.
      style.id = "plotly.js-style-global";
      style.className = "no-inline-styles";
      style.rel = "stylesheet";
      style.href = document.body.dataset.plotlyCss;
      document.head.append(style);
      const script = document.createElement("script");
      script.src = document.body.dataset.plotly;
      script.onload = () => resolve(window.Plotly);
      script.onerror = reject;
      document.head.append(script);
    });
  }
  return loading;
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  return { ink: style.getPropertyValue("--ink").trim(), grid: style.getPropertyValue("--line").trim() };
}

const inUtc = (moment) => `${new Date(moment).toISOString().replace("T", " ").slice(0, 19)} UTC`;

// Plotly shows moments that are numbers in the viewer's zone: the axis names it, and UTC is on hover.
function tellZone(figure) {
  const axis = figure.layout?.xaxis;
  if (axis?.type !== "date") return;
  for (const trace of figure.data) {
    const hover = trace.x.map(inUtc);
    trace.customdata = trace.z ? trace.z.map(() => hover) : hover;
    trace.hovertemplate = (trace.hovertemplate ?? "%{y}<extra>%{fullData.name}</extra>").replace("<extra>", "<br>%{customdata}<extra>");
  }
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "your zone";
  axis.title = { ...axis.title, text: `${axis.title?.text ?? "time"} (${zone})` };
  axis.nticks = innerWidth < 600 ? 4 : 10;
}

async function draw(element) {
  const answer = await fetch(element.dataset.chart, { headers: { accept: "application/json" } });
  if (!answer.ok) return;
  const figure = await answer.json();
  if (!figure.data?.length) { element.textContent = element.dataset.empty || "Nothing was measured yet."; element.classList.remove("plot"); return; }
  tellZone(figure);
  const Plotly = await load();
  const { ink, grid } = colours();
  const layout = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink }, ...figure.layout };
  for (const axis of ["xaxis", "yaxis"]) layout[axis] = { automargin: true, gridcolor: grid, linecolor: grid, ...layout[axis] };
  element.replaceChildren();
  await Plotly.react(element, figure.data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
  element.dataset.drawn = "yes";
}

let wanted = null;

export function refresh() {
  // A live page: its charts are asked for again, at most every few seconds.
  if (wanted || !document.querySelector("[data-chart]")) return;
  wanted = setTimeout(() => { wanted = null; start(); }, 5000);
}

export function start() {
  for (const element of document.querySelectorAll("[data-chart]")) draw(element).catch((error) => { element.textContent = `The chart could not be drawn: ${error.message}`; });
}

addEventListener("holdfast-theme", () => start());
