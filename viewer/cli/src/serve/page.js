// Follows the processes: the server announces updates, and the page fetches only what it shows. It fetches nothing while it
// is hidden or paused. The reader's changes to the page survive updates: sorting, opened parts, search, zoom, scroll
// position.
(() => {
  "use strict";

  const $ = (id) => document.getElementById(id);
  const RETRY = 2000; // milliseconds
  const shown = { id: "", device: "", part: "memory", at: "" };
  let news = null;
  let isPaused = false;
  let stream = null;
  let asked = null; // The request in flight.
  let have = ""; // The shown content and its version.
  let lastNotice = -1;

  // The token comes in the URL fragment, which no server sees, and stays in this tab.
  function takeToken(parameters) {
    if (!parameters.has("token")) return;
    sessionStorage.setItem("memlab-token", parameters.get("token"));
    parameters.delete("token");
    history.replaceState(null, "", parameters.size > 0 ? `#${parameters}` : location.pathname);
  }

  function readAddress() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    takeToken(parameters);
    for (const name of Object.keys(shown)) shown[name] = parameters.get(name) ?? (name === "part" ? "memory" : "");
  }

  function go(change) {
    const other = change.id !== undefined && change.id !== shown.id;
    Object.assign(shown, other ? { device: "", at: "" } : {}, change);
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(shown)) if (value !== "") parameters.set(name, value);
    history.pushState(null, "", `#${parameters}`);
    update();
  }

  function headers() {
    const token = sessionStorage.getItem("memlab-token");
    return token ? { Authorization: `Bearer ${token}` } : {};
  }

  function link(state, text) {
    $("link").className = `link ${state}`;
    $("link").value = text;
  }

  // Pieces of the page.

  // Remembers the reader's changes to a piece before it is replaced; returns a function that restores them.
  function remember(piece) {
    const open = new Map();
    const path = (details) => {
      const names = [];
      for (let up = details; up && up !== piece; up = up.parentElement) {
        if (up.tagName === "DETAILS") names.unshift(up.firstElementChild.querySelector(".what")?.textContent ?? up.firstElementChild.textContent);
      }
      return names.join("\n");
    };
    piece.querySelectorAll("details").forEach((details) => open.set(path(details), details.open));
    const tables = new Map();
    for (const table of piece.querySelectorAll("table.sortable")) {
      const column = Array.from(table.tHead.rows[0].cells).findIndex((head) => head.ariaSort !== "none");
      const tools = table.parentElement.nextElementSibling;
      const search = tools?.matches(".tools") ? tools.querySelector("input") : null;
      tables.set(table.ariaLabel, {
        column, order: column < 0 ? "" : table.tHead.rows[0].cells[column].ariaSort,
        isLong: search !== null && !table.classList.contains("short") && search.value === "", searched: search?.value ?? "",
      });
    }
    const boxes = new Map(Array.from(piece.querySelectorAll("input[type=checkbox]"), (box) => [box.id, box.checked]));
    const flames = Array.from(piece.querySelectorAll("svg.flamegraph"), (svg) => svg.explored?.());
    const scrolled = Array.from(piece.querySelectorAll(".scroll"), (box) => [box.scrollLeft, box.scrollTop]);
    const chart = piece.querySelector("svg.timeline");
    // Another process, device or part has another chart.
    const kept = have.startsWith(`${wanted()} `) ? ["cursor", "zoom"] : ["cursor"];
    const marks = kept.map((name) => [name, chart?.dataset[name]]);
    const focused = piece.contains(document.activeElement) ? document.activeElement : null;
    const focusable = "a, button, input, summary, [tabindex]";
    const place = focused ? Array.from(piece.querySelectorAll(focusable)).indexOf(focused) : -1;
    const caret = focused?.matches("input[type=search]") ? [focused.selectionStart, focused.selectionEnd] : null;

    return () => {
      for (const [name, value] of marks) if (value) piece.querySelector("svg.timeline")?.setAttribute(`data-${name}`, value);
      enhance(piece);
      piece.querySelectorAll("svg.flamegraph").forEach((svg, index) => explore(svg, flames[index]));
      piece.querySelectorAll("details").forEach((details) => {
        const was = open.get(path(details));
        if (was !== undefined) details.open = was;
      });
      for (const table of piece.querySelectorAll("table.sortable")) {
        const was = tables.get(table.ariaLabel);
        if (!was) continue;
        const head = table.tHead.rows[0].cells[was.column];
        // Two clicks reach either order.
        for (let click = 0; head && click < 2 && head.ariaSort !== was.order; click += 1) head.firstElementChild.click();
        const tools = table.parentElement.nextElementSibling;
        if (!tools?.matches(".tools")) continue;
        if (was.isLong) tools.querySelector("button").click();
        if (was.searched) {
          tools.querySelector("input").value = was.searched;
          tools.querySelector("input").dispatchEvent(new Event("input"));
        }
      }
      for (const [id, checked] of boxes) if ($(id)) $(id).checked = checked;
      piece.querySelectorAll(".scroll").forEach((box, index) => ([box.scrollLeft, box.scrollTop] = scrolled[index] ?? [0, 0]));
      if (place >= 0) {
        const again = piece.querySelectorAll(focusable)[place];
        again?.focus({ preventScroll: true });
        if (caret) again?.setSelectionRange?.(...caret);
      }
    };
  }

  // Returns true if the reader is using this piece and would lose something: marked text, a held button.
  let pressed = null;
  function isInUse(piece) {
    const selection = getSelection();
    const marks = !selection.isCollapsed && (piece.contains(selection.anchorNode) || piece.contains(selection.focusNode));
    return marks || (pressed !== null && piece.contains(pressed));
  }

  // Replaces a piece's HTML, unless it is unchanged or in use. Returns true if the piece now has this HTML.
  function put(id, html) {
    const piece = $(id);
    if (piece.source === html) return true;
    if (isInUse(piece)) return false;
    const redo = remember(piece);
    // What the reader looks at stays in its place while pieces above it grow or shrink.
    const below = scrollY > 0 && piece.getBoundingClientRect().bottom <= 0 ? $("part").getBoundingClientRect().top : null;
    piece.innerHTML = html;
    piece.source = html;
    redo();
    if (below !== null) scrollBy({ top: $("part").getBoundingClientRect().top - below, behavior: "instant" });
    return true;
  }

  // The shown process.

  function current() {
    return news?.versions.find((process) => process.id === shown.id) ?? null;
  }

  function wanted() {
    const { device, part, at } = shown;
    return `fragment/${encodeURIComponent(shown.id)}?${new URLSearchParams({ ...(device === "" ? {} : { device }), part, at })}`;
  }

  async function update() {
    markShown();
    if (!news || document.hidden) return;
    if (!current() && news.versions.length > 0 && (shown.id === "" || !have.includes(shown.id))) shown.id = news.versions[0].id;
    const process = current();
    $("process").hidden = process === null;
    if (!process) {
      document.title = "memlab";
      return;
    }
    markShown();
    document.title = `${process.title} – memlab`;
    showMoves(process);
    const what = wanted();
    // Another selection is fetched at once. New data waits for the request in flight, and while the page is paused.
    const isOther = !have.startsWith(`${what} `);
    if (have === `${what} ${process.version}` || asked === what || (isPaused && !isOther)) return;
    if (asked !== null && !isOther) return;
    asked = what;
    const slow = setTimeout(() => $("part").classList.add("waiting"), isOther ? 150 : 5000);
    try {
      const reply = await fetch(what, { headers: headers() });
      if (asked !== what) return;
      if (!reply.ok) {
        const message = await reply.text();
        if (reply.status === 401) return wantToken(message);
        put("part", `<p class="problem"></p>`);
        $("part").firstElementChild.textContent = message;
        have = `${what} ${process.version}`;
        return;
      }
      const fragment = await reply.json();
      if (asked !== what) return;
      const isAllThere = fragment.places.map(([place, html]) => put(place, html)).every(Boolean);
      have = isAllThere ? `${what} ${fragment.version}` : `${what} `;
    } catch {
      link("off", "no answer from memlab serve");
    } finally {
      clearTimeout(slow);
      if (asked === what) {
        asked = null;
        $("part").classList.remove("waiting");
      }
    }
    // Fetch a selection made meanwhile.
    if (have.startsWith(`${wanted()} `) === false) update();
  }

  function markShown() {
    for (const tab of document.querySelectorAll(".tabs [data-part]")) tab.setAttribute("aria-selected", tab.dataset.part === shown.part);
    $("part").setAttribute("aria-labelledby", `tab-${shown.part}`);
    let isMarked = false;
    for (const row of document.querySelectorAll(".processes tbody tr")) {
      const isIt = row.dataset.id === shown.id && (shown.device === "" ? !isMarked : row.dataset.device === shown.device);
      isMarked ||= isIt;
      row.toggleAttribute("aria-current", isIt);
    }
  }

  // Moving memory.

  function showMoves(process) {
    const button = (kind, label) => {
      const isPossible = process.can === kind;
      return `<button type="button" data-move="${kind}" ${isPossible ? "" : "disabled"}>${label}</button>`;
    };
    if (process.over) return put("moves", "");
    put("moves", `${button("offload", "offload…")}${button("restore", "restore")}<output></output>`);
    $("moves").querySelector("output").textContent = process.moving;
  }

  async function ask(question, needsToken) {
    $("question").textContent = question;
    $("wants-token").hidden = !needsToken;
    $("token").value = "";
    $("ask").returnValue = "";
    $("ask").showModal();
    await new Promise((resolve) => $("ask").addEventListener("close", resolve, { once: true }));
    if ($("ask").returnValue !== "yes") return false;
    if (needsToken) sessionStorage.setItem("memlab-token", $("token").value.trim());
    return true;
  }

  async function wantToken(message) {
    if ($("ask").open) return;
    link("off", "the token is missing");
    sessionStorage.removeItem("memlab-token");
    if (await ask(message, true)) {
      have = "";
      follow();
    }
  }

  async function move(kind) {
    const process = current();
    const has = sessionStorage.getItem("memlab-token") !== null;
    const question = kind === "offload"
      ? `Move the GPU memory of ${process.title} to host memory? The program waits until it is restored.`
      : `Move the memory of ${process.title} back to the device? The program then continues.`;
    if (!(await ask(question, !has))) return;
    const reply = await fetch(`processes/${encodeURIComponent(process.id)}/${kind}`, { method: "POST", headers: headers() });
    if (reply.status === 401) sessionStorage.removeItem("memlab-token");
    if (!reply.ok) notice(false, await reply.text());
  }

  function notice(isGood, text) {
    const line = document.createElement("p");
    line.className = isGood ? "done" : "failed";
    line.textContent = text;
    $("notices").append(line);
    while ($("notices").children.length > 4) $("notices").firstElementChild.remove();
    setTimeout(() => line.remove(), isGood ? 20000 : 60000);
  }

  // Updates.

  function onNews(latest) {
    news = latest;
    put("strip", news.strip);
    for (const [number, isGood, text] of news.notices) {
      if (number > lastNotice) notice(isGood, text);
      lastNotice = Math.max(lastNotice, number);
    }
    link("on", isPaused ? "paused" : shown.at === "" ? "live" : "live, an earlier moment is shown");
    update();
  }

  // Reads server-sent events by hand: EventSource cannot send a token.
  async function follow() {
    stream?.abort();
    const mine = (stream = new AbortController());
    while (!mine.signal.aborted) {
      try {
        const reply = await fetch("events", { headers: headers(), signal: mine.signal });
        if (reply.status === 401) return wantToken(await reply.text());
        if (!reply.ok) throw new Error(await reply.text());
        let rest = "";
        const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          const parts = (rest + value).split("\n\n");
          rest = parts.pop();
          // Only the latest event matters.
          const last = parts.filter((part) => part.includes("data:")).pop();
          if (last) onNews(JSON.parse(last.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n")));
        }
      } catch (error) {
        if (mine.signal.aborted) return;
      }
      link("off", "memlab serve does not answer; trying again");
      await new Promise((resolve) => setTimeout(resolve, RETRY));
    }
  }

  function pause(value) {
    isPaused = value;
    $("pause").setAttribute("aria-pressed", value);
    $("pause").textContent = value ? "continue" : "pause";
    if (news) onNews(news);
  }

  // Input of the reader.

  addEventListener("click", (event) => {
    const target = event.target.closest("[data-part], [data-at], button[data-device], [data-move], .processes tr[data-id], #pause");
    if (!target) return;
    const { part, at, device, move: kind, id } = target.dataset;
    if (target.id === "pause") pause(!isPaused);
    else if (kind) move(kind);
    else if (part) go({ part });
    else if (at !== undefined) go({ at });
    else if (id) {
      event.preventDefault();
      go({ id, device: device === "-1" ? "" : device });
    } else go({ device });
  });

  // Chooses a moment on the chart: by a click, or by Enter at the keyboard cursor.
  function chooseOnChart(event) {
    const svg = event.target.closest?.("svg.timeline");
    if (!svg?.dataset.cursor || (event.type === "keydown" && event.key !== "Enter")) return;
    const ns = (Number(svg.dataset.cursor) + 1) * Number(svg.dataset.width);
    go({ at: `${(ns / 1e9).toFixed(9)}s` });
  }
  $("chart").addEventListener("click", chooseOnChart);
  $("chart").addEventListener("keydown", chooseOnChart);

  addEventListener("pointerdown", (event) => (pressed = event.target));
  for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => setTimeout(() => ((pressed = null), update())));
  document.addEventListener("selectionchange", () => getSelection().isCollapsed && update());

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || $("ask").open || event.target.closest?.("input")) return;
    const tabs = document.querySelectorAll(".tabs [data-part]");
    const step = { "[": "◀ step", "]": "step ▶" }[event.key];
    if (/^[1-9]$/.test(event.key) && tabs[event.key - 1]) {
      go({ part: tabs[event.key - 1].dataset.part });
      // The part is below the fold on most screens.
      document.querySelector(".tabs").scrollIntoView({ block: "start", behavior: "smooth" });
    } else if (event.key === "Escape" && shown.at !== "" && !event.target.closest?.("svg.flamegraph")) go({ at: "" });
    else if (event.key === " " && !event.target.closest?.("button, summary, a, [tabindex]")) pause(!isPaused);
    else if (step) Array.from($("moment").querySelectorAll("[data-at]")).find((button) => button.textContent === step)?.click();
    else return;
    event.preventDefault();
  });

  addEventListener("popstate", () => {
    readAddress();
    update();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return follow();
    stream?.abort();
    link("", "waits while it is not looked at");
  });

  readAddress();
  if (document.hidden) link("", "waits while it is not looked at");
  else follow();
})();
