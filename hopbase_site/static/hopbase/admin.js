// Words on charts follow the theme: Chart.js draws on a canvas, which no stylesheet reaches.
const tintCharts = () => {
  Chart.defaults.color = document.documentElement.classList.contains("dark") ? "#9ca3af" : "#4b5563";
  Object.values(Chart.instances).forEach((chart) => chart.update());
};
tintCharts();
new MutationObserver(tintCharts).observe(document.documentElement, { attributeFilter: ["class"] });

// The page with a new key's secret: copy it, and never show it again.
document.addEventListener("DOMContentLoaded", () => {
  const page = document.querySelector("[data-once]");
  if (!page) return;

  // A reload, or Forward after Back, opens the key's own page instead of sending the form again.
  history.replaceState(null, "", page.dataset.nextUrl);

  page.querySelectorAll("[data-copy]").forEach((button) => {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        // No clipboard without HTTPS: select it instead, for the keyboard's copy.
        getSelection().selectAllChildren(source);
        return;
      }
      button.textContent = button.dataset.copied;
      page.querySelector("[data-status]").textContent = button.dataset.copied;
    });
  });

  // A browser may keep the page itself for Back: it is kept without the secret.
  addEventListener("pagehide", () => {
    page.querySelectorAll("[data-secret]").forEach((node) => node.replaceChildren("•••"));
    page.querySelectorAll("[data-copy]").forEach((button) => button.remove());
    page.querySelector("[data-gone]").hidden = false;
  });
});
