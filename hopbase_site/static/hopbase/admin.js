// Words on charts follow the theme: Chart.js draws on a canvas, which no stylesheet reaches.
const tintCharts = () => {
  Chart.defaults.color = document.documentElement.classList.contains("dark") ? "#9ca3af" : "#4b5563";
  Object.values(Chart.instances).forEach((chart) => chart.update());
};
tintCharts();
new MutationObserver(tintCharts).observe(document.documentElement, { attributeFilter: ["class"] });

// Sections as tabs: arrow keys go from one to the next. Without script they stand below each other.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("[data-tabs]").forEach((box) => {
    const panels = [...box.querySelectorAll("[data-tab]")];
    if (panels.length < 2) return;
    const list = document.createElement("div");
    list.className = "hb-tablist";
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-labelledby", box.getAttribute("aria-labelledby"));

    const tabs = panels.map((panel) => {
      const tab = document.createElement("button");
      tab.type = "button";
      tab.className = "hb-tab";
      tab.textContent = panel.dataset.tab;
      tab.id = `${panel.id}-tab`;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", panel.id);
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tab.id);
      list.append(tab);
      return tab;
    });
    const show = (chosen) => {
      tabs.forEach((tab, at) => {
        tab.setAttribute("aria-selected", String(at === chosen));
        tab.tabIndex = at === chosen ? 0 : -1;
        panels[at].hidden = at !== chosen;
      });
    };
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    tabs.forEach((tab, at) => {
      tab.addEventListener("click", () => show(at));
      tab.addEventListener("keydown", (event) => {
        if (!(event.key in steps)) return;
        const next = (at + steps[event.key] + tabs.length) % tabs.length;
        show(next);
        tabs[next].focus();
      });
    });
    panels.forEach((panel) => panel.querySelector("h4")?.remove());
    box.prepend(list);
    show(0);
  });
});

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
        // No clipboard without HTTPS: the old way, which leaves it selected for the keyboard if that is refused too.
        getSelection().selectAllChildren(source);
        if (!document.execCommand("copy")) return;
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
