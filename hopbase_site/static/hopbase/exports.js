// Work in the background, an export or a month run: its page asks how far it is, until it is done.
document.addEventListener("DOMContentLoaded", () => {
  const part = document.querySelector("[data-progress-url]");
  if (!part || !("open" in part.dataset)) return;

  const EVERY_MS = 1000;
  const bar = part.querySelector("progress");
  const state = part.querySelector("[data-state]");
  const words = part.querySelector("[data-words]");

  const show = (told) => {
    // Read out when it changes; the rows, which change all the time, are not.
    if (state.textContent !== told.state) state.textContent = told.state;
    words.textContent = told.words;
    if (told.share === null) bar.removeAttribute("value");
    else bar.value = told.share;
    bar.hidden = part.querySelector("[data-leave]").hidden = !told.open;
    const download = part.querySelector("[data-download]");
    if (!download) return;
    download.hidden = !told.url;
    download.href = told.url;
  };

  const look = async () => {
    try {
      const answer = await fetch(part.dataset.progressUrl, { headers: { accept: "application/json" } });
      if (answer.ok) {
        const told = await answer.json();
        show(told);
        // Its size and hash are known now: they stand in the page itself.
        if (!told.open) return location.reload();
      }
    } catch {
      // The admin is away for a moment: the next look tells.
    }
    setTimeout(look, EVERY_MS);
  };
  setTimeout(look, EVERY_MS);
});
