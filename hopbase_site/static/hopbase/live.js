// A list that keeps itself fresh. The page says where its fragment is (`data-live`) and marks the parts that the
// fragment brings (`data-live-part`); rows are told apart by their link. Focus, choice and scroll stay as they are.
document.addEventListener("DOMContentLoaded", () => {
  const bar = document.querySelector("[data-live]");
  if (!bar) return;

  const find = (name) => bar.querySelector(`[data-${name}]`);
  const pause = find("live-pause");
  const stale = find("live-stale");
  const rows = document.querySelector('[data-live-part="rows"]');
  const every = Number(bar.dataset.everyMs);
  let saidBefore = bar.dataset.said;
  let paused = false;
  let timer = null;
  let busy = false;

  // --- the rows ---

  const keyOf = (row) => row.querySelector("a[href]").getAttribute("href");
  const focusable = (cell) => [...cell.querySelectorAll("a, button, input, summary, [tabindex]")];

  // Where the focus is, by row, cell and place in the cell: a moved or rewritten node loses it.
  const focusIn = (table) => {
    const cell = document.activeElement.closest("td, th");
    if (!cell || !table.contains(cell) || !cell.closest("tbody")) return null;
    return {
      key: keyOf(cell.closest("tbody")),
      cell: cell.cellIndex,
      place: focusable(cell).indexOf(document.activeElement),
    };
  };

  const focusAgain = (table, was) => {
    const row = was && [...table.tBodies].find((one) => keyOf(one) === was.key);
    const cell = row && row.rows[0].cells[was.cell];
    const target = cell && focusable(cell)[was.place];
    if (target && target !== document.activeElement) target.focus({ preventScroll: true });
  };

  // Only cells that say something else are written, so what a reader has marked, checked or reached stays.
  const update = (row, fresh) => {
    row.className = fresh.className;
    [...fresh.rows[0].cells].forEach((cell, index) => {
      const old = row.rows[0].cells[index];
      if (old.innerHTML !== cell.innerHTML) old.replaceChildren(...cell.childNodes);
    });
  };

  const swapRows = (fresh) => {
    const table = rows.querySelector("#result_list");
    const other = fresh.querySelector("#result_list");
    if (!table || !other) {
      if (table || other) rows.replaceChildren(...fresh.childNodes);
      return;
    }
    const was = focusIn(table);
    const known = new Map([...table.tBodies].map((row) => [keyOf(row), row]));
    [...other.tBodies].forEach((row, index) => {
      const key = keyOf(row); // now: `update` takes its cells
      const old = known.get(key);
      if (old) update(old, row);
      known.delete(key);
      const place = table.tBodies[index] ?? null;
      if ((old ?? row) !== place) table.insertBefore(old ?? row, place);
    });
    known.forEach((row) => row.remove());
    focusAgain(table, was);
  };

  // --- the fragment ---

  const say = (text) => {
    const said = find("live-said");
    if (said.textContent !== text) said.textContent = text;
  };

  const show = (fresh) => {
    swapRows(fresh.querySelector('[data-live-part="rows"]'));
    const news = bar.querySelector('[data-live-part="news"]');
    if (!news.contains(document.activeElement)) {
      news.replaceChildren(...fresh.querySelector('[data-live-part="news"]').childNodes);
    }
    find("live-since").textContent = fresh.dataset.asOf;
    const wasStale = !stale.hidden;
    stale.hidden = true;
    if (wasStale || saidBefore !== fresh.dataset.said) say((saidBefore = fresh.dataset.said));
    countPicked();
  };

  const fetchFresh = async () => {
    const response = await fetch(bar.dataset.live, { signal: AbortSignal.timeout(10000), cache: "no-store" });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const fresh = page.querySelector("[data-live-fresh]");
    if (!response.ok || !fresh) throw new Error(`status ${response.status}`); // an ended session answers with a form
    return fresh;
  };

  // Nothing moves under somebody who marks text or answers a question.
  const held = () => {
    const marked = getSelection();
    const marks = !marked.isCollapsed && rows.contains(marked.anchorNode);
    return marks || document.querySelector("dialog[open]") !== null;
  };

  const refresh = async () => {
    if (busy) return;
    busy = true;
    try {
      const fresh = await fetchFresh();
      if (!paused && !held()) show(fresh);
    } catch {
      stale.hidden = false;
      say(stale.textContent.trim().replace(/\s+/g, " "));
    } finally {
      busy = false;
    }
  };

  const next = () => {
    clearTimeout(timer);
    if (paused || document.hidden) return;
    timer = setTimeout(async () => {
      if (!held()) await refresh();
      next();
    }, every);
  };

  const now = async () => {
    clearTimeout(timer);
    if (!paused && !document.hidden) await refresh();
    next();
  };

  pause.addEventListener("click", () => {
    paused = !paused;
    find("live-pausing").hidden = paused;
    find("live-resuming").hidden = !paused;
    now();
  });
  document.addEventListener("visibilitychange", now);

  // --- the choice of rows ---

  const picks = () => [...rows.querySelectorAll("input.hb-pick")];
  const all = find("pick-all");
  const picked = find("picked");

  const countPicked = () => {
    if (!picked) return;
    const count = picks().filter((pick) => pick.checked).length;
    picked.disabled = count === 0;
    find("picked-count").textContent = count ? `(${count})` : "";
    all.querySelector("input").checked = count > 0 && count === picks().length;
  };

  if (picked) {
    rows.addEventListener("change", countPicked);
    all.hidden = false;
    all.addEventListener("change", (event) => {
      picks().forEach((pick) => (pick.checked = event.target.checked));
      countPicked();
    });
    addEventListener("pageshow", countPicked);
    countPicked();
  }

  pause.hidden = false;
  next();
});
