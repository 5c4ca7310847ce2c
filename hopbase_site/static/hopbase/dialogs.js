// Questions in a dialog: a link or a form with `data-ask` shows the page that asks (ask.html) over the one that led
// there. The browser's own <dialog> keeps the focus inside and closes on Escape. Without script the page itself opens.
(() => {
  const ask = async (url, opener) => {
    let form = null;
    try {
      const answer = await fetch(url, { cache: "no-store" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      form = page.querySelector("form.hb-ask");
    } catch {
      form = null;
    }
    if (!form) {
      location.assign(url); // the page itself says what is the matter
      return;
    }
    form.action = url;
    open(form, opener);
  };

  const open = (form, opener) => {
    const dialog = document.createElement("dialog");
    dialog.className = "hb-dialog";
    dialog.setAttribute("aria-labelledby", "hb-question");
    dialog.append(document.adoptNode(form));
    document.body.append(dialog);
    const cancel = form.querySelector("[data-cancel]");
    cancel.addEventListener("click", (event) => {
      event.preventDefault();
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (opener.isConnected) opener.focus();
    });
    dialog.showModal();
    cancel.focus(); // what an Enter too many does is nothing
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-ask]");
    if (!link || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    ask(link.href, link);
  });

  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-ask]");
    if (!form) return;
    event.preventDefault();
    const query = new URLSearchParams(new FormData(form));
    ask(`${form.action}?${query}`, event.submitter ?? form);
  });
})();
