"use strict";
(() => {
  const make = (name, text, attributes = {}) => {
    const node = document.createElement(name);
    if (text) node.textContent = text;
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const rows = (box) => [...box.querySelectorAll("tbody tr")];

  // Filters by status and by group, and a search, above each long table and each grid of squares.
  // They hide rows or squares; nothing is removed. What holds no shown square is hidden as well.
  for (const box of document.querySelectorAll("[data-filter]")) {
    const holders = [...box.querySelectorAll("[data-holds]")].reverse();
    const all = holders.length ? [...box.querySelectorAll("[data-status]")] : rows(box);
    const bar = make("div", "", { class: "filter" });
    const search = make("input", "", { type: "search", placeholder: "search", "aria-label": "search this table" });
    const count = make("span", "", { class: "soft", role: "status" });
    const wanted = { group: "", status: "" };
    const show = () => {
      const word = search.value.toLowerCase();
      let shown = 0;
      for (const row of all) {
        const fits = Object.entries(wanted).every(([facet, value]) => !value || row.dataset[facet] === value)
          && (row.title + row.textContent).toLowerCase().includes(word);
        row.hidden = !fits;
        shown += fits;
      }
      for (const node of holders) node.hidden = !node.querySelector("[data-status]:not([hidden])");
      count.textContent = shown < all.length ? `${shown} of ${all.length}` : "";
    };
    for (const facet of Object.keys(wanted)) {
      const values = [...new Set(all.map((row) => row.dataset[facet]).filter(Boolean))];
      if (values.length < 2) continue;
      const set = make("span", "", { class: "facet", role: "group", "aria-label": facet });
      const buttons = ["", ...values].map((value) => {
        const button = make("button", value || "all", { type: "button", "aria-pressed": String(!value) });
        button.addEventListener("click", () => {
          wanted[facet] = value;
          for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
          show();
        });
        return button;
      });
      set.append(...buttons);
      bar.append(set);
    }
    search.addEventListener("input", show);
    bar.append(search, count);
    box.before(bar);
  }

  // A span selected in the timeline shows the rows of that time.
  for (const figure of document.querySelectorAll("[data-timeline]")) {
    const [first, last, left, right] = figure.dataset.timeline.split(" ").map(Number);
    const svg = figure.querySelector("svg");
    const timed = [...document.querySelectorAll("tr[data-at]")];
    if (!svg || !timed.length) continue;
    const brush = make("div", "", { class: "brush", hidden: "" });
    const note = make("p", "Drag across the timeline to filter the events.", { class: "soft brushed", role: "status" });
    figure.classList.add("brushable");
    figure.append(brush);
    figure.after(note);
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width - left) / (right - left);
      return Math.min(Math.max(share, 0), 1);
    };
    let from = null;
    const draw = (a, b) => {
      const box = svg.getBoundingClientRect();
      const offset = box.left - figure.getBoundingClientRect().left + figure.scrollLeft;
      const x = (share) => offset + box.width * (left + (right - left) * share);
      brush.hidden = false;
      brush.style.left = `${x(Math.min(a, b))}px`;
      brush.style.width = `${Math.abs(x(b) - x(a))}px`;
    };
    const select = (a, b) => {
      const clear = Math.abs(b - a) < 0.004;
      const low = first + (last - first) * Math.min(a, b);
      const high = first + (last - first) * Math.max(a, b);
      let shown = 0;
      for (const row of timed) {
        const fits = clear || (Number(row.dataset.at) >= low && Number(row.dataset.at) <= high);
        row.hidden = !fits;
        shown += fits;
      }
      brush.hidden = clear;
      note.textContent = clear ? "Drag across the timeline to filter the events."
        : `${shown} of ${timed.length} lines between ${low.toFixed(1)} s and ${high.toFixed(1)} s; click once to see all.`;
      if (!clear) for (const row of timed) row.closest("details")?.setAttribute("open", "");
    };
    svg.addEventListener("pointerdown", (event) => { from = at(event); event.preventDefault(); });
    window.addEventListener("pointermove", (event) => { if (from !== null) draw(from, at(event)); });
    window.addEventListener("pointerup", (event) => { if (from !== null) { select(from, at(event)); from = null; } });
  }

  // The verdict and what to do, as a chat message or as the text of an issue.
  for (const box of document.querySelectorAll(".copies")) {
    for (const [kind, label] of [["chat", "copy as chat message"], ["issue", "copy as issue"]]) {
      const button = make("button", label, { type: "button" });
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(box.dataset[kind]);
          button.textContent = "copied";
        } catch {
          button.textContent = "not copied: the browser refuses";
        }
        setTimeout(() => { button.textContent = label; }, 2000);
      });
      box.append(button);
    }
  }

  // Commands have a button that copies them, and are broken between words: an option stays whole.
  for (const text of document.querySelectorAll("[data-copy]")) {
    const button = make("button", "copy", { type: "button", class: "copy" });
    const command = text.textContent;
    if (!command.includes("\n")) {
      text.replaceChildren(...command.split(/( +)/).map(
        (word) => word.trim() ? make("span", word, { class: "word" }) : word));
    }
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(text);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
    const box = make("div", "", { class: "copied" });
    text.before(box);
    box.append(text, button);
  }

  // A link to a line opens what it is folded in.
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (target) target.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  reveal();

  // The list of contents marks the part that is read.
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "0px 0px -75% 0px" });
  for (const section of document.querySelectorAll("section[id]")) seen.observe(section);
})();
