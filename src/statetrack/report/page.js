"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const data = JSON.parse(byId("data").textContent);
  const FACETS = Object.keys(data.facets);
  const fact = (i, name) => data.facets[name][data.facts[i][FACETS.indexOf(name)]];
  const colour = (i) => `var(--c${data.models.indexOf(fact(i, "model"))})`;
  const dashes = (i) => data.dashes[fact(i, "range")] || "none";
  const numbered = new Set(all("#numbers tbody tr, #pretrained tbody tr").map((row) => Number(row.dataset.i)));

  const element = (tag, fields = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(fields)) {
      if (name === "text") made.textContent = value;
      else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  };
  const drawn = (tag, fields, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(fields)) {
      if (name === "style") made.style.cssText = value;
      else if (name === "text") made.textContent = value;
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };

  // -- what is shown, and its address ----------------------------------------------------------

  const tabs = all('[role="tab"]');
  const names = tabs.map((tab) => tab.getAttribute("aria-controls"));
  const PANELS = { model: "one per model", range: "one per range", curve: "one per curve", one: "all in one" };
  const state = { tab: names[0], at: null, q: "", sort: null, panels: "model", off: new Set(),
    chosen: Object.fromEntries(FACETS.map((name) => [name, new Set()])) };

  const read = () => {
    const [place, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
    const asked = new URLSearchParams(query);
    const target = names.includes(place) || !place ? null : byId(decodeURIComponent(place));
    const section = target && target.closest("section");
    state.at = section ? target.id : null;
    state.tab = section ? section.id : names.includes(place) ? place : names[0];
    state.q = asked.get("q") || "";
    state.sort = asked.get("sort");
    state.panels = asked.get("panels") in PANELS ? asked.get("panels") : "model";
    state.off = new Set(asked.getAll("off"));
    for (const name of FACETS) {
      state.chosen[name] = new Set(asked.getAll(name).filter((v) => data.facets[name].includes(v)));
    }
  };
  const address = () => {
    const asked = new URLSearchParams();
    if (state.q) asked.set("q", state.q);
    for (const name of FACETS) for (const value of state.chosen[name]) asked.append(name, value);
    if (state.sort) asked.set("sort", state.sort);
    if (state.panels !== "model") asked.set("panels", state.panels);
    for (const value of state.off) asked.append("off", value);
    const query = asked.toString();
    return "#" + (state.at || state.tab) + (query ? "?" + query : "");
  };
  const remember = (how) => {
    if (address() !== location.hash) history[how](null, "", address());
  };

  const showTab = () => {
    for (const tab of tabs) {
      const on = tab.getAttribute("aria-controls") === state.tab;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      byId(tab.getAttribute("aria-controls")).classList.toggle("shown", on);
      const bar = tab.parentNode;
      if (on) bar.scrollLeft = tab.offsetLeft - (bar.clientWidth - tab.offsetWidth) / 2;
    }
    for (const row of all(".here")) row.classList.remove("here");
    hideTip();
    plotTab();
    const row = state.at && byId(state.at);
    if (row) {
      row.classList.add("here");
      row.scrollIntoView({ block: "center" });
    } else {
      scrollTo(0, 0);
    }
  };
  const go = (place) => {
    const target = byId(place);
    state.at = names.includes(place) ? null : place;
    state.tab = names.includes(place) ? place : target.closest("section").id;
    remember("pushState");
    showTab();
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const place = decodeURIComponent(link.getAttribute("href").slice(1));
    go(place);
    const row = state.at && byId(place);
    if (row) {
      row.tabIndex = -1;
      row.focus({ preventScroll: true });
    }
  });
  document.querySelector('[role="tablist"]').addEventListener("keydown", (event) => {
    const here = names.indexOf(state.tab);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(names[(to + names.length) % names.length]);
    tabs[names.indexOf(state.tab)].focus();
  });

  // -- filters ---------------------------------------------------------------------------------

  const words = () => state.q.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (i, but = null) =>
    words().every((word) => data.words[i].includes(word)) &&
    FACETS.every((name) =>
      name === but || !state.chosen[name].size || state.chosen[name].has(fact(i, name)));
  const cells = data.facts.map((_, i) => i);
  let shown = new Set(cells);

  const filter = () => {
    shown = new Set(cells.filter((i) => matches(i)));
    for (const node of all("[data-i]")) {
      if (!node.closest(".heat")) node.hidden = !shown.has(Number(node.dataset.i));
    }
    for (const box of all(".heat")) filterHeat(box);
    for (const table of all("table.missing, table.places")) {
      const rows = all("tbody tr[data-i]", table);
      const empty = rows.length > 0 && rows.every((row) => row.hidden);
      (table.closest(".wide") || table).hidden = empty;
    }
    for (const facet of all(".facet")) {
      const name = facet.dataset.facet;
      const chosen = state.chosen[name];
      facet.querySelector(".chosen").textContent = [...chosen].join(", ") || "all";
      facet.classList.toggle("on", chosen.size > 0);
      for (const box of all("input", facet)) {
        box.checked = chosen.has(box.value);
        const left = cells.filter((i) => fact(i, name) === box.value && matches(i, name)).length;
        box.parentNode.querySelector(".tally").textContent = left;
        box.parentNode.classList.toggle("none", left === 0);
      }
    }
    if (byId("q").value !== state.q) byId("q").value = state.q;
    const filled = [...shown].filter((i) => numbered.has(i)).length;
    byId("status").textContent = `${shown.size} of ${cells.length} cells, ${filled} with runs`;
    const said = FACETS.filter((name) => state.chosen[name].size)
      .map((name) => `${name} ${[...state.chosen[name]].join(" or ")}`);
    if (state.q) said.unshift(`“${state.q}”`);
    byId("filtered").textContent = said.length ? `Shown: ${said.join(", ")}.` : "";
    byId("clear").disabled = !said.length && !state.sort && !state.off.size;
  };
  const filterHeat = (box) => {
    const rows = all("tbody tr", box);
    const heads = all("thead th", box);
    const used = heads.map((_, column) => column === 0);
    for (const row of rows) {
      let any = false;
      [...row.children].forEach((cell, column) => {
        if (!column) return;
        const on = cell.dataset.i !== undefined && shown.has(Number(cell.dataset.i));
        cell.classList.toggle("out", !on);
        any = any || on;
        used[column] = used[column] || on;
      });
      row.hidden = !any;
    }
    for (const row of [heads, ...rows.map((row) => [...row.children])]) {
      row.forEach((cell, column) => { cell.hidden = !used[column]; });
    }
    box.hidden = rows.every((row) => row.hidden);
  };
  const changed = () => {
    state.at = null;
    filter();
    remember("replaceState");
    plotTab();
  };

  byId("q").addEventListener("input", (event) => { state.q = event.target.value; changed(); });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("change", (event) => {
    if (event.target.type !== "checkbox") return;
    const { name, value, checked } = event.target;
    state.chosen[name][checked ? "add" : "delete"](value);
    changed();
  });
  byId("clear").addEventListener("click", () => {
    state.q = "";
    state.sort = null;
    state.off.clear();
    for (const name of FACETS) state.chosen[name].clear();
    sort();
    changed();
    byId("q").focus();
  });
  document.addEventListener("click", (event) => {
    for (const open of all(".facet[open]")) if (!open.contains(event.target)) open.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hideTip();
    const open = event.target.closest && event.target.closest(".facet[open]");
    if (open) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  });

  const copy = async (text, button) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = element("textarea", { class: "hidden" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  };
  byId("share").addEventListener("click", (event) => copy(location.href, event.target));
  for (const code of all("code.command")) {
    const button = element("button", { type: "button", class: "copy", text: "Copy", "aria-label": "Copy the command" });
    button.addEventListener("click", () => copy(code.textContent, button));
    code.after(" ", button);
  }

  // -- sorting ---------------------------------------------------------------------------------

  const heads = all("#numbers thead th");
  const first = all("#numbers tbody tr");
  const sort = () => {
    const key = (state.sort || "").replace(/^-/, "");
    const down = (state.sort || "").startsWith("-");
    const column = heads.findIndex((head) => head.dataset.key === key);
    for (const head of heads) head.removeAttribute("aria-sort");
    let rows = first;
    if (column >= 0) {
      heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
      const text = heads[column].dataset.kind === "text";
      const value = (row) => {
        const cell = row.children[column];
        if (text) return cell.textContent || null;
        return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
      };
      const collator = new Intl.Collator("en", { numeric: true });
      rows = first.map((row) => [value(row), row]).sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return (down ? -1 : 1) * (text ? collator.compare(a, b) : a - b);
      }).map(([, row]) => row);
    }
    byId("numbers").tBodies[0].append(...rows);
  };
  for (const head of heads) {
    const button = element("button", { type: "button", text: head.textContent });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.dataset.key, down = "-" + up;
      const natural = head.dataset.kind === "text" ? up : down;
      const other = natural === up ? down : up;
      state.sort = state.sort === natural ? other : natural;
      sort();
      changed();
    });
  }

  // -- the read-out ----------------------------------------------------------------------------

  const tip = byId("tip");
  const hideTip = () => { tip.hidden = true; };
  const showTip = (x, y, ...lines) => {
    tip.replaceChildren(...lines.map((line) => (typeof line === "string" ? element("div", { text: line }) : line)));
    tip.hidden = false;
    const left = Math.min(x + 14, innerWidth - tip.offsetWidth - 8);
    const above = y - tip.offsetHeight - 12;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = Math.max(8, above < 8 ? Math.min(y + 18, innerHeight - tip.offsetHeight - 8) : above) + "px";
  };
  const say = (text) => { byId("said").textContent = text; };

  const columnOf = Object.fromEntries(heads.map((head, column) => [head.dataset.key, column]));
  const aboutCell = (cell) => {
    const i = Number(cell.dataset.i);
    const title = `${data.labels[i]}, ${fact(i, "task")}`;
    const row = byId(`row-${i}`);
    if (cell.classList.contains("empty")) {
      const code = document.querySelector(`#missing-${i} code`);
      return [title, code ? `Empty. ${code.textContent}` : "Empty."];
    }
    const value = (key) => row.children[columnOf[key]].textContent.trim();
    const lines = [title, `best ${value("best")}, median ${value("median")}, seeds ${value("seeds")}`];
    if (value("paper")) lines.push(`paper ${value("paper")}, ours minus paper’s ${value("difference")}`);
    lines.push(`${value("metric")} on lengths ${value("lengths")}`);
    const remark = row.querySelector(".full");
    if (remark) lines.push(remark.textContent);
    return lines;
  };
  for (const box of all(".heat")) {
    const about = (event) => {
      const cell = event.target.closest("td[data-i]");
      if (!cell || cell.classList.contains("out")) return hideTip();
      const at = cell.getBoundingClientRect();
      showTip(at.left + at.width / 2, at.top, ...aboutCell(cell));
      if (event.type === "focusin") say(aboutCell(cell).join(". "));
    };
    box.addEventListener("pointerover", about);
    box.addEventListener("focusin", about);
    box.addEventListener("pointerleave", hideTip);
    box.addEventListener("focusout", hideTip);
  }
  addEventListener("scroll", hideTip, { passive: true });

  // -- plots -----------------------------------------------------------------------------------

  const KINDS = {
    length: { x: "tokens read", title: "against length", unit: [-0.1, 1.04] },
    operations: { x: "operations since last shown", title: "accuracy against operations", unit: [-0.1, 1.04], log: true },
    score: { x: "step", title: "on the validation set", unit: [-0.1, 1.04] },
    loss: { x: "step", title: "training loss" },
    dots: { x: "eigenvalue of A(x)", title: "eigenvalues" },
  };
  for (const [name, measure] of Object.entries(data.measures)) KINDS[name] = { x: "million tokens read", ...measure };
  const MARKERS = ["", "circle", "square", "triangle", "diamond", "cross", "wedge", "plus"];
  const SMALL = [250, 165], LARGE = [720, 360];
  const EDGES = { small: [40, 14, 6, 30], large: [44, 20, 8, 38] };  // left, right, top, bottom
  const ASPECT = (SMALL[0] - 40 - 14) / (SMALL[1] - 6 - 30);
  const zooms = new Map();
  const short = (value) => {
    if (Math.abs(value) >= 1e4) return `${+(value / 1000).toFixed(1)}k`;
    return String(+value.toPrecision(3));
  };
  const number = (value) => Math.abs(value) < 1000 ? value.toFixed(3) : Math.round(value).toLocaleString("en");

  const ticks = (low, high, count) => {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough) || power * 10;
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(+(n * step).toPrecision(12));
    return found;
  };
  const powers = (low, high) => {
    const found = [];
    for (let n = Math.ceil(Math.log2(low) - 1e-9); n <= Math.log2(high) + 1e-9; n++) found.push(2 ** n);
    return found.length > 6 ? found.filter((_, n) => n % 2 === 0) : found;
  };

  const marker = (name, x, y, fill) => {
    const r = 3.2;
    const shapes = {
      circle: `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
      square: `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
      triangle: `M${x},${y - r * 1.2}l${r * 1.15},${r * 2}h${-r * 2.3}z`,
      diamond: `M${x},${y - r * 1.3}l${r * 1.3},${r * 1.3}l${-r * 1.3},${r * 1.3}l${-r * 1.3},${-r * 1.3}z`,
      cross: `M${x - r},${y - r}l${2 * r},${2 * r}M${x + r},${y - r}l${-2 * r},${2 * r}`,
      wedge: `M${x},${y + r * 1.2}l${r * 1.15},${-r * 2}h${-r * 2.3}z`,
      plus: `M${x - r * 1.2},${y}h${r * 2.4}M${x},${y - r * 1.2}v${r * 2.4}`,
    };
    const line = name === "cross" || name === "plus" ? `stroke:${fill};stroke-width:2` : `fill:${fill}`;
    return drawn("path", { d: shapes[name], style: line });
  };
  const swatch = (i, mark) => {
    const svg = drawn("svg", { width: 30, height: 10, "aria-hidden": "true", class: "swatch" },
      drawn("line", { x1: 1, y1: 5, x2: 29, y2: 5, style: `stroke:${colour(i)};stroke-width:2.4;stroke-dasharray:${dashes(i)}` }));
    if (mark) svg.append(marker(mark, 15, 5, colour(i)));
    return svg;
  };

  /* One panel: an svg with scales, what it draws, and a way to ask what lies at a place. */
  class Panel {
    constructor(figure, title, members, size) {
      Object.assign(this, { figure, title, members, size, at: null });
      this.box = element("div", { class: "panel", tabindex: 0, role: "group", "aria-roledescription": "plot", "aria-label": this.summary() });
      this.box.append(element("p", { class: "panel-title", text: title }));
      const [width, height] = size;
      this.svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
      this.box.append(this.svg);
      if (members.length > 1 || figure.kind === "dots" || figure.by !== "curve") this.box.append(this.keys());
      this.box.addEventListener("keydown", (event) => this.key(event));
      this.box.addEventListener("focus", () => { if (this.box.matches(":focus-visible")) this.speak(this.at === null ? this.xs().length - 1 : this.at); });
      this.box.addEventListener("blur", () => this.clear());
      this.svg.addEventListener("pointermove", (event) => this.move(event));
      this.svg.addEventListener("pointerdown", (event) => this.down(event));
      this.svg.addEventListener("pointerup", (event) => this.up(event));
      this.svg.addEventListener("pointercancel", () => { this.from = null; this.clear(); });
      this.svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && !this.from) this.clear(); });
      this.svg.addEventListener("dblclick", () => this.figure.zoom(null));
    }
    summary() {
      const { kind, block } = this.figure;
      const ends = this.members.map((i) => {
        const curve = data[kind][i];
        if (kind === "dots") return `lowest real part ${curve.lowest === null ? "unknown" : number(curve.lowest)}`;
        return `${data.labels[i]} ends at ${number(curve.y[curve.y.length - 1])}`;
      });
      return `${block.title}, ${this.title}, ${KINDS[kind].title}: ${ends.join("; ")}. Arrow keys read it, plus and minus zoom.`;
    }
    keys() {
      const list = element("ul", { class: "keys" });
      const { kind, by } = this.figure;
      if (kind === "dots") {
        const found = data.dots[this.members[0]];
        const said = `lowest ${found.lowest === null ? "–" : number(found.lowest)}, seed ${found.seed}`;
        list.append(element("li", { text: said }));
        if (found.layers.length > 1) {
          found.layers.forEach(({ layer }, n) => {
            const svg = drawn("svg", { width: 12, height: 12, "aria-hidden": "true" }, marker(MARKERS[1 + (n % (MARKERS.length - 1))], 6, 6, colour(this.members[0])));
            list.append(element("li", {}, svg, ` layer ${layer}`));
          });
        }
        return list;
      }
      for (const i of this.members) {
        const range = fact(i, "range");
        const rest = [range === "none" ? null : range, data.variants[i]].filter(Boolean).join(", ");
        const said = by === "model" ? rest || "no range" : data.labels[i];
        list.append(element("li", {}, swatch(i, this.figure.mark(i)), said));
      }
      return list;
    }
    /* What it shows of x: its figure's part; of eigenvalues its own whole, unless one has zoomed. */
    get domain() {
      const { kind, zoomed, domain } = this.figure;
      if (kind !== "dots" || zoomed) return domain;
      const found = data.dots[this.members[0]];
      if (found.real) return [-1.12, 1.12].map((end) => end * Math.max(1, ...found.layers.flatMap((one) => one.x.map(Math.abs))));
      const reach = this.reach() * ASPECT;
      return [-reach, reach];
    }
    /* How far up and down complex eigenvalues go, so that the unit circle is round. */
    reach() {
      const { layers } = data.dots[this.members[0]];
      const far = (list) => Math.max(...list.map(Math.abs));
      return 1.12 * Math.max(1, ...layers.flatMap(({ x, y }) => [far(x) / ASPECT, far(y)]));
    }
    get logY() { return this.figure.kind === "dots" && data.dots[this.members[0]].real; }
    scales() {
      const { kind } = this.figure;
      const domain = this.domain;
      const [width, height] = this.size;
      const [left, right, top, bottom] = EDGES[this.figure.wide ? "large" : "small"];
      const log = KINDS[kind].log;
      const f = log ? Math.log2 : (value) => value;
      const back = log ? (value) => 2 ** value : (value) => value;
      const [x0, x1] = domain.map(f);
      const [y0, y1] = this.figure.heights(this);
      const g = this.logY ? Math.log10 : (value) => value;
      return {
        left, top, right: width - right, bottom: height - bottom,
        x: (value) => left + ((f(value) - x0) / (x1 - x0)) * (width - left - right),
        unX: (px) => back(x0 + ((px - left) / (width - left - right)) * (x1 - x0)),
        y: (value) => height - bottom - ((g(value) - g(y0)) / (g(y1) - g(y0))) * (height - top - bottom),
        y0, y1,
      };
    }
    draw() {
      const { kind, block } = this.figure;
      const domain = this.domain;
      const s = (this.s = this.scales());
      const [width, height] = this.size;
      const parts = [];
      const clip = drawn("svg", { x: s.left, y: 0, width: s.right - s.left, height: height, viewBox: `${s.left} 0 ${s.right - s.left} ${height}`, overflow: "hidden" });
      if (kind === "length" && block.mark !== null) {
        clip.append(drawn("rect", { class: "trained", x: s.x(0), y: s.top, width: Math.max(0, s.x(block.mark) - s.x(0)), height: s.bottom - s.top }));
      }
      const many = this.figure.wide ? 8 : 4;
      const across = KINDS[kind].log ? powers(...domain) : ticks(...domain, many);
      for (const value of across) {
        parts.push(drawn("line", { class: "grid", x1: s.x(value), x2: s.x(value), y1: s.top, y2: s.bottom }));
        parts.push(drawn("text", { x: s.x(value), y: s.bottom + (this.figure.wide ? 15 : 12), "text-anchor": "middle", text: KINDS[kind].log && value === 0.5 ? "0" : short(value) }));
      }
      const up = this.logY ? [0.0001, 0.001, 0.01, 0.1, 1].filter((v) => v >= s.y0) : ticks(s.y0, s.y1, this.figure.wide ? 5 : 3);
      for (const value of up) {
        parts.push(drawn("line", { class: "grid", x1: s.left, x2: s.right, y1: s.y(value), y2: s.y(value) }));
        const text = this.logY ? `${+(100 * value).toPrecision(2)}%` : short(value);
        parts.push(drawn("text", { x: s.left - 4, y: s.y(value) + 3.5, "text-anchor": "end", text }));
      }
      parts.push(drawn("text", { x: (s.left + s.right) / 2, y: height - 4, "text-anchor": "middle", text: this.xName() }));
      if (kind === "dots") this.dots(clip); else this.lines(clip);
      this.over = drawn("g", { class: "over" });
      this.svg.replaceChildren(...parts, clip, this.over);
    }
    xName() {
      if (this.figure.kind !== "dots") return KINDS[this.figure.kind].x;
      return data.dots[this.members[0]].real ? "eigenvalue of A(x)" : "real part (up: imaginary)";
    }
    lines(clip) {
      const s = this.s;
      for (const i of this.members) {
        const { x, y, low, high } = data[this.figure.kind][i];
        if (low) {
          const there = x.map((v, n) => `${s.x(v).toFixed(1)},${s.y(high[n]).toFixed(1)}`);
          const back = x.map((v, n) => `${s.x(v).toFixed(1)},${s.y(low[n]).toFixed(1)}`).reverse();
          clip.append(drawn("polygon", { points: [...there, ...back].join(" "), style: `fill:${colour(i)};opacity:.16` }));
        }
      }
      for (const i of this.members) {
        const { x, y } = data[this.figure.kind][i];
        const points = x.map((v, n) => `${s.x(v).toFixed(1)},${s.y(y[n]).toFixed(1)}`).join(" ");
        clip.append(drawn("polyline", { class: "curve", "data-i": i, points, style: `stroke:${colour(i)};stroke-dasharray:${dashes(i)}` }));
        const mark = this.figure.mark(i) || (x.length === 1 ? "circle" : "");
        const every = Math.max(1, Math.floor(x.length / 5));
        if (mark) x.forEach((v, n) => { if (n % every === 0) clip.append(marker(mark, s.x(v), s.y(y[n]), colour(i))); });
      }
    }
    dots(clip) {
      const s = this.s;
      const i = this.members[0];
      const found = data.dots[i];
      if (found.real) clip.append(drawn("line", { class: "axis", x1: s.x(0), x2: s.x(0), y1: s.top, y2: s.bottom }));
      else clip.append(drawn("ellipse", { class: "axis", cx: s.x(0), cy: s.y(0), rx: Math.abs(s.x(1) - s.x(0)), ry: Math.abs(s.y(1) - s.y(0)) }));
      found.layers.forEach(({ x, y, share }, n) => {
        x.forEach((v, k) => {
          const made = marker(MARKERS[1 + (n % (MARKERS.length - 1))], s.x(v), s.y(found.real ? share[k] : y[k]), colour(i));
          made.setAttribute("class", "dot");
          if (!found.real) {
            const size = 0.6 + 2 * Math.sqrt(share[k]);
            const [px, py] = [s.x(v), s.y(y[k])];
            made.setAttribute("transform", `translate(${px} ${py}) scale(${size.toFixed(2)}) translate(${-px} ${-py})`);
          }
          clip.append(made);
        });
      });
    }
    /* The places that can be read: x of all curves, or the dots from left to right. */
    xs() {
      const { kind } = this.figure;
      const domain = this.domain;
      if (kind === "dots") {
        const found = data.dots[this.members[0]];
        return found.layers.flatMap(({ layer, x, y, share }) => x.map((v, k) => ({ layer, x: v, y: found.real ? share[k] : y[k], share: share[k] })))
          .filter((dot) => dot.x >= domain[0] && dot.x <= domain[1]).sort((a, b) => a.x - b.x || a.y - b.y);
      }
      const every = new Set(this.members.flatMap((i) => data[kind][i].x));
      return [...every].filter((v) => v >= domain[0] && v <= domain[1]).sort((a, b) => a - b);
    }
    /* What the curves say nearest to x. */
    readings(x) {
      const { kind } = this.figure;
      const distance = KINDS[kind].log ? (v) => Math.abs(Math.log2(v / x)) : (v) => Math.abs(v - x);
      return this.members.map((i) => {
        const curve = data[kind][i];
        let best = 0;
        curve.x.forEach((v, n) => { if (distance(v) < distance(curve.x[best])) best = n; });
        const where = curve.where ? curve.where[best] : `step ${curve.x[best]}`;
        let text = `${data.labels[i]}: ${number(curve.y[best])}`;
        if (curve.low) text += ` (${number(curve.low[best])} to ${number(curve.high[best])}, ${curve.seeds} seeds)`;
        return { i, x: curve.x[best], y: curve.y[best], where, text };
      }).sort((a, b) => b.y - a.y);
    }
    show(index) {
      const xs = this.xs();
      if (!xs.length) return "";
      this.at = Math.max(0, Math.min(xs.length - 1, index));
      const s = this.s;
      const box = this.svg.getBoundingClientRect();
      const scale = box.width / this.size[0];
      const at = xs[this.at];
      if (this.figure.kind === "dots") {
        const found = data.dots[this.members[0]];
        const value = found.real ? number(at.x) : `${number(at.x)} ${at.y < 0 ? "-" : "+"} ${number(Math.abs(at.y))} i`;
        const text = `layer ${at.layer}: ${value}, ${+(100 * at.share).toPrecision(3)} % of the eigenvalues`;
        this.over.replaceChildren(drawn("circle", { class: "ring", cx: s.x(at.x), cy: s.y(at.y), r: 6 }));
        showTip(box.left + s.x(at.x) * scale, box.top + s.y(at.y) * scale, text);
        return text;
      }
      const found = this.readings(at);
      const nearest = found.filter((one) => one.x === at);
      const where = (nearest[0] || found[0]).where;
      const px = s.x(at);
      this.over.replaceChildren(
        drawn("line", { class: "cross", x1: px, x2: px, y1: s.top, y2: s.bottom }),
        ...found.map((one) => drawn("circle", { class: "spot", cx: s.x(one.x), cy: s.y(one.y), r: 3.4, style: `fill:${colour(one.i)}` })),
      );
      const lines = found.slice(0, 12).map((one) =>
        element("div", {}, swatch(one.i, this.figure.mark(one.i)), one.where === where ? one.text : `${one.text} at ${one.where}`));
      if (found.length > 12) lines.push(`and ${found.length - 12} more`);
      const top = Math.min(...found.map((one) => s.y(one.y)));
      showTip(box.left + px * scale, box.top + top * scale, element("strong", { text: where }), ...lines);
      return `${where}: ${found.map((one) => one.text).join("; ")}`;
    }
    speak(index) { say(this.show(index)); }
    clear() {
      if (this.over) this.over.replaceChildren();
      hideTip();
    }
    place(event) {
      const box = this.svg.getBoundingClientRect();
      const scale = this.size[0] / box.width;
      return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    }
    move(event) {
      const [px, py] = this.place(event);
      const s = this.s;
      if (this.from && Math.abs(px - this.from) > 5) {
        const [a, b] = [Math.max(s.left, Math.min(this.from, px)), Math.min(s.right, Math.max(this.from, px))];
        this.over.replaceChildren(drawn("rect", { class: "chosen-part", x: a, y: s.top, width: Math.max(0, b - a), height: s.bottom - s.top }));
        hideTip();
        return;
      }
      if (this.from) return;
      const xs = this.xs();
      let best = -1, least = Infinity;
      xs.forEach((v, n) => {
        const far = this.figure.kind === "dots" ? Math.hypot(s.x(v.x) - px, s.y(v.y) - py) : Math.abs(s.x(v) - px);
        if (far < least) [best, least] = [n, far];
      });
      if (best < 0 || px < s.left - 8 || (this.figure.kind === "dots" && least > 24)) this.clear();
      else this.show(best);
    }
    down(event) {
      if (event.pointerType === "touch") return this.move(event);
      if (event.button !== 0) return;
      this.from = this.place(event)[0];
      this.svg.setPointerCapture(event.pointerId);
    }
    up(event) {
      if (!this.from) return;
      const s = this.s;
      const ends = [this.from, this.place(event)[0]].sort((a, b) => a - b).map((px) => s.unX(Math.max(s.left, Math.min(s.right, px))));
      const moved = Math.abs(this.place(event)[0] - this.from) > 5;
      this.from = null;
      if (moved) this.figure.zoom(ends);
    }
    key(event) {
      const xs = this.xs();
      const here = this.at === null ? xs.length - 1 : this.at;
      const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: xs.length - 1 }[event.key];
      const part = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
      if (to !== undefined) this.speak(to);
      else if (part) this.figure.scale(part, this.middle());
      else if (event.key === "0" || (event.key === "Escape" && this.figure.zoomed)) this.figure.zoom(null);
      else return;
      event.preventDefault();
    }
    middle() {
      const at = this.at === null ? undefined : this.xs()[this.at];
      if (at !== undefined) return typeof at === "number" ? at : at.x;
      return this.s.unX((this.s.left + this.s.right) / 2);
    }
  }

  /* The panels of one task: they share their x axis and zoom together. */
  class Figure {
    constructor(kind, b, members) {
      Object.assign(this, { kind, b, members, block: data.blocks[b], by: kind === "dots" ? "curve" : state.panels });
      this.wide = this.by === "one";
      this.all = this.whole();
      this.domain = zooms.get(this.id) || this.all;
      this.variants = [...new Set(members.map((i) => data.variants[i]))];
      const heading = element("h3", { text: `${this.block.title}: ${kind === "length" || kind === "score" ? this.block.metric + " " : ""}${KINDS[kind].title}` });
      this.reset = element("button", { type: "button", text: "Whole range", disabled: true });
      this.reset.addEventListener("click", () => this.zoom(null));
      const nearer = element("button", { type: "button", text: "+", "aria-label": "Zoom in" });
      const farther = element("button", { type: "button", text: "−", "aria-label": "Zoom out" });
      nearer.addEventListener("click", () => this.scale(0.5, this.panels[0].middle()));
      farther.addEventListener("click", () => this.scale(2, this.panels[0].middle()));
      const tools = element("span", { class: "tools" }, nearer, farther, this.reset);
      this.grid = element("div", { class: this.wide ? "panels wide-panels" : "panels" });
      this.table = element("details", { class: "as-table" }, element("summary", { text: "Numbers as a table" }));
      this.table.addEventListener("toggle", () => { if (this.table.open && this.table.children.length === 1) this.table.append(this.asTable()); });
      const columns = this.wide ? 3 : Math.min(5, this.groups().length);
      this.node = element("figure", { class: "block", style: `--columns:${columns}` }, element("figcaption", {}, heading, tools), this.grid, this.table);
      this.panels = [];
    }
    get id() { return `${this.kind} ${this.b}`; }
    get zoomed() { return zooms.has(this.id); }
    mark(i) { return this.variants.length > 1 ? MARKERS[this.variants.indexOf(data.variants[i]) % MARKERS.length] : ""; }
    whole() {
      if (this.kind === "dots") {
        const far = 1.12 * Math.max(1, ...this.members.flatMap((i) => data.dots[i].layers.flatMap((one) => one.x.map(Math.abs))));
        return [-far, far];
      }
      const xs = this.members.flatMap((i) => data[this.kind][i].x);
      const mark = this.kind === "length" ? this.block.mark || 0 : 0;
      if (KINDS[this.kind].log) return [Math.min(...xs) / 1.15, Math.max(...xs) * 1.15];
      return [0, Math.max(mark, ...xs) || 1];
    }
    heights(panel) {
      if (this.kind === "dots") {
        const found = data.dots[panel.members[0]];
        if (!found.real) return [-panel.reach(), panel.reach()];
        return [Math.min(0.0005, ...found.layers.flatMap((one) => one.share)) / 1.5, 1.6];
      }
      const [x0, x1] = this.domain;
      let low = Infinity, high = -Infinity;
      for (const i of this.members) {
        const curve = data[this.kind][i];
        curve.x.forEach((v, n) => {
          if (v < x0 || v > x1) return;
          low = Math.min(low, (curve.low || curve.y)[n]);
          high = Math.max(high, (curve.high || curve.y)[n]);
        });
      }
      const unit = KINDS[this.kind].unit;
      if (unit) return [Math.min(unit[0], low - 0.05), unit[1]];
      if (KINDS[this.kind].close && high >= low) {
        const room = 0.05 * (high - low) || 0.5;
        return [low - room, high + room];
      }
      if (!(high > 0)) return [0, 1];
      return [0, high * 1.05];
    }
    groups() {
      if (this.by === "one") return [["all models", this.members]];
      if (this.by === "curve") return this.members.map((i) => [data.labels[i], [i]]);
      const found = new Map();
      for (const i of this.members) {
        const name = fact(i, this.by);
        found.set(name, [...(found.get(name) || []), i]);
      }
      return [...found].map(([name, mine]) => [this.by === "range" && name === "none" ? "no range" : name, mine]);
    }
    draw() {
      if (this.panels.length) return;
      const size = this.wide ? LARGE : SMALL;
      this.panels = this.groups().map(([title, mine]) => new Panel(this, title, mine, size));
      this.grid.replaceChildren(...this.panels.map((panel) => panel.box));
      this.redraw();
    }
    redraw() {
      this.reset.disabled = !this.zoomed;
      for (const panel of this.panels) panel.draw();
    }
    zoom(ends) {
      if (ends && ends[1] - ends[0] > 1e-9 * (this.all[1] - this.all[0])) zooms.set(this.id, ends);
      else zooms.delete(this.id);
      this.domain = zooms.get(this.id) || this.all;
      hideTip();
      for (const panel of this.panels) panel.at = null;
      this.redraw();
    }
    scale(part, middle) {
      const f = KINDS[this.kind].log ? Math.log2 : (v) => v;
      const back = KINDS[this.kind].log ? (v) => 2 ** v : (v) => v;
      const [a, b] = this.domain.map(f);
      const m = f(middle);
      const ends = [Math.max(this.all[0], back(m - (m - a) * part)), Math.min(this.all[1], back(m + (b - m) * part))];  // never beyond the whole
      this.zoom(ends[0] <= this.all[0] && ends[1] >= this.all[1] ? null : ends);
    }
    asTable() {
      const { kind } = this;
      const head = (text) => element("th", { scope: "col", text });
      const caption = element("caption", {}, element("span", { text: `${this.block.title}: ${KINDS[kind].title}` }));
      const body = element("tbody");
      let heads;
      if (kind === "dots") {
        heads = ["model", "layer", "real part", "imaginary part", "share"];
        for (const i of this.members) for (const { layer, x, y, share } of data.dots[i].layers) x.forEach((v, k) => {
          body.append(element("tr", {}, element("th", { scope: "row", text: data.labels[i] }),
            ...[layer, v, y.length ? y[k] : 0, share[k]].map((text) => element("td", { text }))));
        });
      } else {
        heads = [KINDS[kind].x, ...this.members.map((i) => data.labels[i])];
        const xs = [...new Set(this.members.flatMap((i) => data[kind][i].x))].sort((a, b) => a - b);
        for (const v of xs) {
          const row = element("tr", {}, element("th", { scope: "row" }));
          for (const i of this.members) {
            const curve = data[kind][i];
            const n = curve.x.indexOf(v);
            if (n >= 0 && !row.firstChild.textContent) row.firstChild.textContent = curve.where ? curve.where[n] : `step ${v}`;
            row.append(element("td", { text: n < 0 ? "–" : number(curve.y[n]) }));
          }
          body.append(row);
        }
      }
      const table = element("table", {}, caption, element("thead", {}, element("tr", {}, ...heads.map(head))), body);
      return element("div", { class: "wide", role: "region", tabindex: 0, "aria-label": `${this.block.title}, numbers` }, table);
    }
  }

  const switchFor = (name, value, sample, text) => {
    const key = `${name}:${value}`;
    const button = element("button", { type: "button", "aria-pressed": String(!state.off.has(key)) }, sample, text);
    button.addEventListener("click", () => {
      state.off[state.off.has(key) ? "delete" : "add"](key);
      changed();
      const again = all(`#${state.tab} .legend button`).find((one) => one.textContent === text);
      if (again) again.focus();
    });
    return button;
  };
  const legend = (members, kind) => {
    const bar = element("div", { class: "legend", role: "group", "aria-label": "Curves to show" });
    for (const model of data.models) {
      if (!members.some((i) => fact(i, "model") === model)) continue;
      const sample = element("span", { class: "blob", style: `background:var(--c${data.models.indexOf(model)})` });
      bar.append(switchFor("model", model, sample, model));
    }
    for (const range of data.facets.range) {
      if (!members.some((i) => fact(i, "range") === range)) continue;
      const sample = drawn("svg", { width: 30, height: 10, "aria-hidden": "true" },
        drawn("line", { x1: 1, y1: 5, x2: 29, y2: 5, style: `stroke:var(--ink);stroke-width:2.4;stroke-dasharray:${data.dashes[range] || "none"}` }));
      bar.append(switchFor("range", range, sample, range === "none" ? "no range" : range));
    }
    if (kind !== "dots") {
      const select = element("select", {}, ...Object.entries(PANELS).map(([value, text]) => element("option", { value, text, selected: value === state.panels })));
      select.addEventListener("change", () => {
        state.panels = select.value;
        changed();
        byId(state.tab).querySelector(".legend select").focus();
      });
      bar.append(element("label", {}, "Panels: ", select));
    }
    return bar;
  };

  const watcher = new IntersectionObserver((seen) => {
    for (const one of seen) {
      if (!one.isIntersecting) continue;
      watcher.unobserve(one.target);
      one.target.figure.draw();
    }
  }, { rootMargin: "600px" });
  let everything = false;

  const plot = (place) => {
    const named = [place.dataset.kind, ...(place.dataset.also || "").split(" ").filter(Boolean)];
    const kinds = place.dataset.kind === "pretraining" ? Object.keys(data.measures) : named;
    const known = cells.filter((i) => shown.has(i) && kinds.some((kind) => i in data[kind]));
    const off = (i) => state.off.has(`model:${fact(i, "model")}`) || state.off.has(`range:${fact(i, "range")}`);
    const nodes = [];
    data.blocks.forEach((block, b) => {
      for (const kind of kinds) {
        const mine = block.cells.filter((i) => shown.has(i) && !off(i) && i in data[kind]);
        if (!mine.length) continue;
        const figure = new Figure(kind, b, mine);
        figure.node.figure = figure;
        nodes.push(figure.node);
      }
    });
    for (const old of all("figure", place)) watcher.unobserve(old);
    const note = element("p", { class: "note", text: "Nothing to draw: no finished run of what is chosen has such numbers." });
    place.replaceChildren(...(known.length ? [legend(known, kinds[0])] : []), ...(nodes.length ? nodes : [note]));
    for (const node of nodes) {
      if (everything) node.figure.draw();
      else watcher.observe(node);
    }
  };
  const plotTab = () => {
    hideTip();
    for (const place of all(everything ? ".plots" : `#${state.tab} .plots`)) plot(place);
  };

  // -- printing: every section, as it is filtered ------------------------------------------------

  addEventListener("beforeprint", () => { everything = true; plotTab(); });
  addEventListener("afterprint", () => { everything = false; plotTab(); });

  // -- and off we go -----------------------------------------------------------------------------

  const start = () => {
    read();
    sort();
    filter();
    showTab();
  };
  byId("top").append(element("p", { id: "filtered", class: "printed" }));
  byId("filters").hidden = false;
  root.classList.add("js");
  start();
  addEventListener("popstate", start);
})();
