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

  // Zooms a chart to the part that is dragged over, and shows figures at the pointer. `count`: number of columns;
  // `words(index)`: the figures of a column.
  function chart(svg, count, words) {
    const [left, right] = [svg.dataset.left, svg.dataset.right].map(Number);
    const readout = svg.closest("figure").querySelector(".readout");
    const cursor = svg.querySelector(".cursor");
    const content = svg.querySelector(".zoom");
    const chosen = svg.appendChild(document.createElementNS(svg.namespaceURI, "rect"));
    chosen.setAttribute("class", "chosen");
    let [from, to] = [left, right];
    let at = -1;
    let dragged = null;
    // The zoom is kept in nanoseconds or requests: a run that grows has other places for them.
    const whole = count * Number(svg.dataset.width ?? 1);
    const unit = (x) => ((x - left) / (right - left)) * whole;
    const scale = () => (right - left) / (to - from);
    const onScreen = (x) => left + (x - from) * scale();
    const zoom = (start, end) => {
      [from, to] = [start, end];
      if (start === left && end === right) delete svg.dataset.zoom;
      else svg.dataset.zoom = `${unit(start)} ${unit(end)}`;
      content.setAttribute("transform", `translate(${left - from * scale()} 0) scale(${scale()} 1)`);
      for (const part of svg.querySelectorAll("[data-x]")) {
        const x = onScreen(Number(part.dataset.x));
        part.setAttribute("transform", `translate(${x - Number(part.dataset.x)} 0)`);
        part.style.visibility = x < left - 1 || x > right + 1 ? "hidden" : "";
      }
    };
    const show = (index) => {
      at = svg.dataset.cursor = Math.max(0, Math.min(count - 1, index));
      const x = onScreen(left + ((right - left) * (at + 0.5)) / count);
      cursor.setAttribute("transform", `translate(${x} 0)`);
      cursor.style.visibility = x < left || x > right ? "hidden" : "visible";
      readout.textContent = words(at);
    };
    const hide = () => {
      delete svg.dataset.cursor;
      cursor.style.visibility = "hidden";
      readout.textContent = "\u00a0";
    };
    const place = (event) => {
      const { x } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      return from + (Math.max(left, Math.min(right, x)) - left) / scale();
    };
    const draw = (x) => {
      const [start, end] = [onScreen(Math.min(dragged, x)), onScreen(Math.max(dragged, x))];
      for (const [name, value] of Object.entries({ x: start, width: end - start, y: 0, height: "100%" })) chosen.setAttribute(name, value);
    };
    svg.addEventListener("pointerdown", (event) => {
      // A finger scrolls.
      if (event.button !== 0 || event.pointerType === "touch") return;
      dragged = place(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      const x = place(event);
      show(Math.floor(((x - left) / (right - left)) * count));
      if (dragged !== null) draw(x);
    });
    svg.addEventListener("pointerup", (event) => {
      if (dragged === null) return;
      const [start, end] = [Math.min(dragged, place(event)), Math.max(dragged, place(event))];
      dragged = null;
      chosen.setAttribute("width", 0);
      // A part of at least three columns; less is a click.
      if (((end - start) / (right - left)) * count < 3 || (end - start) * scale() < 6) return;
      zoom(start, end);
      const stop = (click) => click.stopPropagation();
      svg.addEventListener("click", stop, { once: true });
      setTimeout(() => svg.removeEventListener("click", stop));
    });
    svg.addEventListener("pointercancel", () => {
      dragged = null;
      chosen.setAttribute("width", 0);
    });
    svg.addEventListener("dblclick", () => zoom(left, right));
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? 25 : 1;
      const next = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: count - 1 };
      if (event.key === "Escape" && svg.dataset.zoom) {
        event.stopPropagation();
        return zoom(left, right);
      }
      if (!(event.key in next)) return;
      show(next[event.key]);
      event.preventDefault();
    });
    if (svg.dataset.zoom) {
      const [start, end] = svg.dataset.zoom.split(" ").map((place) => left + ((right - left) * Number(place)) / whole);
      if (end <= right) zoom(start, end);
      else delete svg.dataset.zoom;
    }
    if (svg.dataset.cursor) show(Number(svg.dataset.cursor));
  }

  const numbers = (text) => text.split(";").map((column) => column.split(",").map(Number));

  function overTime(svg) {
    const columns = numbers(svg.dataset.columns);
    const width = Number(svg.dataset.width);
    chart(svg, columns.length, (at) => {
      const [least, most, reserved, used] = columns[at];
      const allocated = least === most ? size(most) : `${size(least)} to ${size(most)}`;
      return `after ${duration(at * width)}: ${allocated} allocated, ${size(reserved)} reserved, ${size(used)} in use on the device`;
    });
  }

  function byRequest(svg) {
    const points = numbers(svg.dataset.points);
    const places = svg.dataset.places.split("\n");
    chart(svg, points.length, (at) => {
      const [allocated, ...held] = points[at];
      const lines = [];
      for (let index = 0; index < held.length; index += 2) lines.push(`${size(held[index + 1])} ${places[held[index]]}`);
      return `${size(allocated)} allocated: ${lines.join(" · ")}`;
    });
  }

  function enhance(root) {
    root.querySelectorAll("table.sortable").forEach(sortable);
    root.querySelectorAll("svg.timeline[data-columns]").forEach(overTime);
    root.querySelectorAll("svg.timeline[data-points]").forEach(byRequest);
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
