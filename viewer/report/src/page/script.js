// Sorting, searching and shortening of tables; the tree's buttons; the chart's readout. A page that replaces some of its content
// calls enhance() with the new part.
const enhance = (() => {
  "use strict";

  const SHOWN = 12; // Same as .short in the style.

  function duration(ns) {
    const seconds = ns / 1e9;
    if (seconds < 1) return `${(seconds * 1000).toPrecision(3)} ms`;
    if (seconds < 60) return `${seconds.toFixed(2)} s`;
    const two = (number) => String(Math.floor(number)).padStart(2, "0");
    if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
    return `${Math.floor(seconds / 3600)}h ${two((seconds / 60) % 60)}m`;
  }

  function element(name, parts, ...children) {
    const made = Object.assign(document.createElement(name), parts);
    made.append(...children);
    return made;
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const heads = Array.from(table.tHead.rows[0].cells);
    const words = new Intl.Collator("en", { numeric: true });
    heads.forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => {
        const isText = head.classList.contains("name");
        const now = head.getAttribute("aria-sort");
        const order = now === "none" ? (isText ? "ascending" : "descending") : now === "ascending" ? "descending" : "ascending";
        heads.forEach((other) => other.setAttribute("aria-sort", other === head ? order : "none"));
        const sign = order === "ascending" ? 1 : -1;
        const key = (row) => {
          const cell = row.cells[column];
          return isText ? cell.textContent : Number(cell.dataset.v);
        };
        const rows = Array.from(body.rows, (row) => [key(row), row]);
        rows.sort(([a], [b]) => sign * (isText ? words.compare(a, b) : a - b));
        body.append(...rows.map(([, row]) => row));
      });
    });
    if (body.rows.length <= SHOWN) return;

    const count = element("span", { className: "note" });
    const search = element("input", { type: "search", placeholder: "show only", ariaLabel: `show only ${table.ariaLabel} with` });
    const button = element("button", { type: "button" });
    let isShort = true;
    const update = () => {
      const asked = search.value.trim().toLowerCase();
      let matching = 0;
      for (const row of body.rows) {
        const matches = row.textContent.toLowerCase().includes(asked);
        row.classList.toggle("gone", !matches);
        if (matches) matching += 1;
      }
      table.classList.toggle("short", isShort && asked === "");
      button.hidden = asked !== "";
      button.textContent = isShort ? `show all ${body.rows.length}` : `show the first ${SHOWN}`;
      count.textContent = asked === "" ? "" : `${matching} of ${body.rows.length}`;
    };
    search.addEventListener("input", update);
    button.addEventListener("click", () => {
      isShort = !isShort;
      update();
    });
    table.parentElement.after(element("div", { className: "tools" }, button, search, count));
    update();
  }

  function readable(svg) {
    const columns = svg.dataset.columns.split(";").map((column) => column.split(",").map(Number));
    const [left, right, width] = [svg.dataset.left, svg.dataset.right, svg.dataset.width].map(Number);
    const readout = svg.closest("figure").querySelector(".readout");
    const cursor = svg.querySelector(".cursor");
    let at = -1;
    const show = (index) => {
      at = svg.dataset.cursor = Math.max(0, Math.min(columns.length - 1, index));
      const [least, most, reserved, used] = columns[at];
      const x = left + ((right - left) * (at + 0.5)) / columns.length;
      cursor.setAttribute("transform", `translate(${x} 0)`);
      cursor.style.visibility = "visible";
      const allocated = least === most ? size(most) : `${size(least)} to ${size(most)}`;
      readout.textContent =
        `after ${duration(at * width)}: ${allocated} allocated, ${size(reserved)} reserved, ${size(used)} in use on the device`;
    };
    const hide = () => {
      delete svg.dataset.cursor;
      cursor.style.visibility = "hidden";
      readout.textContent = "\u00a0";
    };
    svg.addEventListener("pointermove", (event) => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      if (place.x < left || place.x > right) return hide();
      show(Math.floor(((place.x - left) / (right - left)) * columns.length));
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? 25 : 1;
      const next = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: columns.length - 1 };
      if (!(event.key in next)) return;
      show(next[event.key]);
      event.preventDefault();
    });
    if (svg.dataset.cursor) show(Number(svg.dataset.cursor));
  }

  function enhance(root) {
    root.querySelectorAll("table.sortable").forEach(sortable);
    root.querySelectorAll("svg.timeline[data-columns]").forEach(readable);
    for (const button of root.querySelectorAll("[data-open]")) {
      button.addEventListener("click", () => {
        const tree = button.parentElement.nextElementSibling;
        tree.querySelectorAll("details").forEach((details) => (details.open = button.dataset.open === "all"));
      });
    }
  }
  enhance(document);
  return enhance;
})();
