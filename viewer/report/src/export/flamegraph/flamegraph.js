// Zoom, search and keys for flamegraphs, in a page or as separate files. Without scripts, titles still show the figures. A page
// that replaces a flamegraph calls explore() with the new one and the result of the old one's `explored`.
const explore = (() => {
  "use strict";

  // `before`: the names of the calls down to the zoomed one, and the searched text.
  function explore(svg, before) {
    const width = svg.viewBox.baseVal.width;
    const facts = svg.querySelector(".facts");
    const reset = svg.querySelector(".reset");
    const search = svg.querySelector("input");
    const resting = facts.textContent;
    // Frames are in depth-first order: the parent is the last one in the row above.
    const path = [];
    const frames = Array.from(svg.querySelectorAll(".f"), (element, index) => {
      const depth = Number(element.dataset.d);
      const said = element.querySelector("title").textContent;
      const frame = {
        element, index, depth, said,
        name: said.split("\n")[0],
        bytes: Number(element.dataset.b),
        x: element.x.baseVal.value,
        w: element.width.baseVal.value,
        text: element.querySelector("text"),
        parent: depth > 0 ? path[depth - 1] : null,
        children: [],
      };
      if (frame.parent) frame.parent.children.push(frame);
      path[depth] = frame;
      return frame;
    });
    if (frames.length === 0) return;
    const of = new Map(frames.map((frame) => [frame.element, frame]));
    const root = frames[0];
    let zoomed = root;
    let searched = "";

    // Width of a character in the browser's font.
    function measured() {
      const text = frames.find((frame) => frame.text.textContent.length > 3)?.text;
      const length = text ? text.getComputedTextLength() / text.textContent.length : 0;
      return length > 1 ? length : 6.95;
    }

    function place(frame, x, w, advance) {
      const { element, text, name } = frame;
      element.setAttribute("x", x);
      element.setAttribute("width", w);
      const room = Math.floor((w - 8) / advance);
      text.textContent = name.length <= room ? name : room < 3 ? "" : `${name.slice(0, room - 1)}…`;
    }

    function zoom(frame) {
      const advance = measured();
      zoomed = frame;
      const scale = width / frame.w;
      const above = new Set();
      for (let up = frame.parent; up; up = up.parent) above.add(up);
      const inside = new Set();
      for (const each of frames) {
        const below = each === frame || inside.has(each.parent);
        if (below) inside.add(each);
        each.element.classList.toggle("above", above.has(each));
        each.element.classList.toggle("gone", !below && !above.has(each));
        if (above.has(each)) place(each, 0, width, advance);
        else if (below) place(each, (each.x - frame.x) * scale, each.w * scale, advance);
      }
      reset.classList.toggle("gone", frame === root);
      reset.setAttribute("tabindex", frame === root ? "-1" : "0");
    }

    function find(text) {
      searched = text.trim().toLowerCase();
      let bytes = 0;
      let count = 0;
      const covered = new Set();
      for (const frame of frames) {
        const hit = searched !== "" && frame !== root && frame.said.toLowerCase().includes(searched);
        frame.element.classList.toggle("hit", hit);
        // A hit includes the bytes of all calls below it.
        if (hit) count += 1;
        if (hit && !covered.has(frame.parent)) bytes += frame.bytes;
        if (hit || covered.has(frame.parent)) covered.add(frame);
      }
      const share = root.bytes > 0 ? ((100 * bytes) / root.bytes).toFixed(1) : "0";
      facts.textContent = searched === "" ? resting : `${count === 1 ? "1 call matches" : `${count} calls match`}, with ${size(bytes)} (${share} %)`;
    }

    function tell(frame) {
      facts.textContent = frame.said.split("\n").join("  ·  ");
    }

    function focus(frame, byMouse = false) {
      if (!frame) return;
      for (const each of frames) each.element.setAttribute("tabindex", each === frame ? "0" : "-1");
      frame.element.focus({ preventScroll: byMouse });
      tell(frame);
    }

    function visible(frame) {
      return frame && !frame.element.classList.contains("gone") ? frame : null;
    }

    svg.addEventListener("click", (event) => {
      if (event.target.closest(".reset")) return zoom(root);
      const frame = of.get(event.target.closest(".f"));
      if (!frame) return;
      zoom(frame === zoomed && frame.parent ? frame.parent : frame);
      // Escape and the arrows continue from here.
      focus(frame, true);
    });
    svg.addEventListener("mouseover", (event) => {
      const frame = of.get(event.target.closest(".f"));
      if (frame) tell(frame);
    });
    svg.addEventListener("mouseleave", () => find(searched));
    svg.addEventListener("keydown", (event) => {
      if (event.target === search) {
        if (event.key === "Escape") {
          search.value = "";
          find("");
        }
        return;
      }
      if (event.key === "Escape" || (event.key === "Enter" && event.target.closest(".reset"))) {
        zoom(root);
        focus(root);
        return;
      }
      const frame = of.get(event.target.closest(".f"));
      if (!frame) return;
      const beside = frame.parent ? frame.parent.children : [frame];
      const at = beside.indexOf(frame);
      const next = {
        ArrowUp: frame.parent,
        ArrowDown: frame.children[0],
        ArrowLeft: beside[at - 1],
        ArrowRight: beside[at + 1],
        Home: root,
      };
      if (event.key === "Enter" || event.key === " ") zoom(frame);
      else if (event.key in next) focus(visible(next[event.key]));
      else return;
      event.preventDefault();
    });
    search.addEventListener("input", () => find(search.value));
    // A separate picture has no other text for the browser's own search.
    if (document.documentElement === svg) {
      document.addEventListener("keydown", (event) => {
        if ((event.ctrlKey || event.metaKey) && event.key === "f") {
          event.preventDefault();
          search.focus();
        }
      });
    }
    root.element.setAttribute("tabindex", "0");
    svg.explored = () => {
      const names = [];
      for (let up = zoomed; up.parent; up = up.parent) names.unshift(up.name);
      return { names, searched: search.value };
    };
    if (root.w <= 0) return;
    let start = root;
    for (const name of before?.names ?? []) {
      const next = start.children.find((child) => child.name === name);
      if (!next) break;
      start = next;
    }
    zoom(start);
    if (before?.searched) {
      search.value = before.searched;
      find(search.value);
    }
  }

  document.querySelectorAll("svg.flamegraph").forEach((svg) => explore(svg));
  return explore;
})();
