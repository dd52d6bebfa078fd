// Starts what the page needs. The addresses hold digests, so they come from the page.
const addresses = document.body.dataset.modules.split(" ");
const [live, times, keys, charts] = await Promise.all(addresses.map((address) => import(address)));
times.localise(document);
times.tick();
keys.start();
charts.start();
live.start((part) => { times.localise(part); charts.refresh(part); });
document.documentElement.dataset.scripts = "ready";
