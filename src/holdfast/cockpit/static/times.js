// Times in the viewer's zone, UTC on hover; ages that grow. Without this script times are UTC as the server wrote them.
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const full = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false,
});
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

function age(seconds) {
  if (seconds < 0) return "in " + span(-seconds);
  return span(seconds) + " ago";
}

function span(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

function show(element) {
  const at = Number(element.dataset.at);
  const moment = new Date(at * 1000);
  let text;
  if (element.dataset.style === "age") text = age(Date.now() / 1000 - at);
  else if (element.dataset.style === "full") text = full.format(moment);
  else text = (Date.now() - moment > 86400000 ? day.format(moment) + " " : "") + clock.format(moment);
  if (element.textContent !== text) element.textContent = text;
}

export function localise(root) {
  for (const element of root.querySelectorAll("time[data-at]")) show(element);
  const zone = document.getElementById("zone");
  if (zone) zone.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone || "your zone";
}

export function tick() {
  setInterval(() => {
    if (document.hidden) return;
    for (const element of document.querySelectorAll('time[data-style="age"]')) show(element);
  }, 1000);
}
