// Dark or light as the viewer chose last, before anything is drawn. A classic script: modules come too late for this.
(function () {
  try {
    const chosen = localStorage.getItem("holdfast-theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch { /* a browser that keeps nothing follows the system */ }
})();
