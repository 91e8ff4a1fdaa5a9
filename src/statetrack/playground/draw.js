"use strict";
// Pictures, as SVG made node by node: text only ever becomes text. Each function draws once into
// an element and returns what updates it.

const draw = (() => {
  const SPACE = "http://www.w3.org/2000/svg";

  function svg(name, attributes = {}, ...children) {
    const node = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    for (const child of children) node.append(child);
    return node;
  }
  const text = (x, y, content, attributes = {}) => svg("text", { x, y, ...attributes }, content);
  const line = (x1, y1, x2, y2, attributes) => svg("line", { x1, y1, x2, y2, ...attributes });
  const clear = (node) => { while (node.firstChild) node.firstChild.remove(); };
  const round = (x) => Math.round(x * 100) / 100;
  const mix = (a, b, p) => a + (b - a) * p;

  // A number for people: short, and never a bare 0 for what is not zero.
  function number(x) {
    if (x === 0) return "0";
    if (Math.abs(x) < 0.001) {
      const [digit, power] = x.toExponential(0).split("e-");
      return `${digit.replace("-", "−")}·10⁻${[...power].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]).join("")}`;
    }
    return String(Number(x.toFixed(3))).replace("-", "−");
  }

  // -- the machine ------------------------------------------------------------------------------

  const RADIUS = 21, CROWDED = 2.6, LARGE = 30, LABELLED = 14;

  function arrows(delta) {
    return delta.map((row) => {
      const ends = new Map();
      row.forEach((end, letter) => ends.set(end, [...(ends.get(end) || []), letter]));
      return ends;
    });
  }

  // Where the states stand: a few ways are tried, and the one with the fewest crossings is taken.
  function places(delta) {
    const n = delta.length;
    const pairs = [];
    arrows(delta).forEach((ends, from) => {
      for (const to of ends.keys()) if (to !== from) pairs.push([from, to]);
    });
    const orders = [delta.map((_, q) => q)];
    for (let letter = 0; letter < Math.min(8, delta[0].length); letter++) orders.push(walk(delta, letter));
    let tried = orders.map((order) => circle(order));
    if (n <= LARGE) tried = [...tried, layered(delta), stress(pairs, tried[0]), stress(pairs, layered(delta))];
    if (n === 2) tried = [[[0, 0], [150, 0]]];
    let best = null, least = Infinity;
    for (const spots of tried) {
      const cost = disorder(spots, pairs);
      if (cost < least - 1e-9) [best, least] = [spots, cost];
    }
    return best;
  }

  function walk(delta, letter) {
    const seen = new Set(), order = [];
    for (let first = 0; first < delta.length; first++) {
      for (let q = first; !seen.has(q); q = delta[q][letter]) { seen.add(q); order.push(q); }
    }
    return order;
  }

  function circle(order) {
    const n = order.length, r = Math.max(85, (n * (n > LARGE ? 26 : 78)) / (2 * Math.PI));
    const spots = [];
    order.forEach((q, i) => {
      const angle = Math.PI + (2 * Math.PI * i) / n;
      spots[q] = [r * Math.cos(angle), r * Math.sin(angle)];
    });
    return spots;
  }

  function layered(delta) {
    const depth = new Map([[0, 0]]), queue = [0];
    for (const q of queue) {
      for (const end of delta[q]) if (!depth.has(end)) { depth.set(end, depth.get(q) + 1); queue.push(end); }
    }
    const columns = [];
    for (const q of queue) (columns[depth.get(q)] = columns[depth.get(q)] || []).push(q);
    const spots = [];
    columns.forEach((column, c) => column.forEach((q, i) => {
      spots[q] = [c * 125, (i - (column.length - 1) / 2) * 105 + (column.length > 1 || c % 2 ? 0 : 1)];
    }));
    return spots;
  }

  // Distances on the page like distances in the graph (stress, by majorisation).
  function stress(pairs, from) {
    const n = from.length, far = Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => i === j ? 0 : n));
    for (const [a, b] of pairs) far[a][b] = far[b][a] = 1;
    for (let k = 0; k < n; k++) for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
      far[i][j] = Math.min(far[i][j], far[i][k] + far[k][j]);
    }
    let spots = from.map(([x, y], i) => [x + Math.sin(i * 7.1), y + Math.cos(i * 3.3)]);
    for (let round = 0; round < 150; round++) {
      spots = spots.map(([x, y], i) => {
        let total = 0, nx = 0, ny = 0;
        spots.forEach(([u, v], j) => {
          if (i === j) return;
          const ideal = 120 * far[i][j] ** 0.9, weight = 1 / (ideal * ideal), gap = Math.hypot(x - u, y - v) || 1;
          total += weight;
          nx += weight * (u + (ideal * (x - u)) / gap);
          ny += weight * (v + (ideal * (y - v)) / gap);
        });
        return total ? [nx / total, ny / total] : [x, y];
      });
    }
    const cx = spots.reduce((s, p) => s + p[0], 0) / n, cy = spots.reduce((s, p) => s + p[1], 0) / n;
    const turn = Math.PI - Math.atan2(spots[0][1] - cy, spots[0][0] - cx);
    return spots.map(([x, y]) => [
      (x - cx) * Math.cos(turn) - (y - cy) * Math.sin(turn), (x - cx) * Math.sin(turn) + (y - cy) * Math.cos(turn),
    ]);
  }

  function disorder(spots, pairs) {
    let cost = 0;
    const seen = pairs.filter(([a, b]) => a < b || !pairs.some(([c, d]) => c === b && d === a)).slice(0, 200);
    seen.forEach(([a, b], i) => {
      const length = Math.hypot(spots[a][0] - spots[b][0], spots[a][1] - spots[b][1]);
      cost += length / 400;
      spots.forEach((spot, q) => { if (q !== a && q !== b && near(spot, spots[a], spots[b]) < RADIUS + 8) cost += 2; });
      for (const [c, d] of seen.slice(i + 1)) if (![a, b].includes(c) && ![a, b].includes(d) && cross(spots[a], spots[b], spots[c], spots[d])) cost += 1;
    });
    spots.forEach((p, i) => spots.slice(i + 1).forEach((q) => { if (Math.hypot(p[0] - q[0], p[1] - q[1]) < 62) cost += 3; }));
    const ys = spots.map((p) => p[1]), xs = spots.map((p) => p[0]);
    const wide = Math.max(...xs) - Math.min(...xs) + 150, high = Math.max(...ys) - Math.min(...ys) + 150;
    return cost + Math.max(0, high / wide - 1) * 2 + Math.max(0, wide / high - 2.2);
  }

  function near([x, y], [a, b], [c, d]) {
    const length = (c - a) ** 2 + (d - b) ** 2;
    const t = Math.max(0, Math.min(1, ((x - a) * (c - a) + (y - b) * (d - b)) / length));
    return Math.hypot(x - a - t * (c - a), y - b - t * (d - b));
  }

  function cross(a, b, c, d) {
    const side = (p, q, r) => Math.sign((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]));
    return side(a, b, c) !== side(a, b, d) && side(c, d, a) !== side(c, d, b);
  }

  // The direction from a state that is farthest from those in `taken`; of equals the first in
  // `wanted`.
  function freest(taken, wanted) {
    const apart = (a, b) => Math.abs(Math.atan2(Math.sin(a - b), Math.cos(a - b)));
    let best = wanted[0], widest = -1;
    for (const angle of wanted) {
      const gap = Math.min(1.6, ...taken.map((other) => apart(angle, other)));
      if (gap > widest + 0.05) [best, widest] = [angle, gap];
    }
    return best;
  }

  // Where loops and the arrow to the start leave their states: in the gaps between other arrows.
  function gaps(spots, ends, middle) {
    const out = spots.map(([x, y], q) => {
      const taken = [];
      spots.forEach(([u, v], other) => {
        if (other !== q && (ends[q].has(other) || ends[other].has(q))) taken.push(Math.atan2(v - y, u - x));
      });
      return taken;
    });
    const around = (first) => Array.from({ length: 16 }, (_, i) => first + ((i % 2 ? 1 : -1) * Math.ceil(i / 2) * Math.PI) / 8);
    const start = freest(out[0], around(Math.PI));
    out[0].push(start);
    const loops = spots.map(([x, y], q) => {
      const away = spots.length < 3 ? -Math.PI / 2 : Math.atan2(y - middle[1], x - middle[0]);
      return freest(out[q], around(away));
    });
    return { start, loops };
  }

  // The path of an arrow, and where its letters stand.
  function curve(spots, from, to, r, both, angle, place = 0.5) {
    const [x, y] = spots[from], [u, v] = spots[to];
    if (from === to) {
      const at = (turn, d) => [x + d * Math.cos(angle + turn), y + d * Math.sin(angle + turn)];
      const [a, b, c, d, label] = [at(-0.4, r), at(-0.55, r * 2.75), at(0.55, r * 2.75), at(0.4, r + 3), at(0, r * 2.75)];
      return [`M${a.map(round)}C${b.map(round)} ${c.map(round)} ${d.map(round)}`, label];
    }
    const length = Math.hypot(u - x, v - y), along = (u - x) / length, across = (v - y) / length;
    const others = spots.filter((_, q) => q !== from && q !== to);
    const room = (bend) => { // how near the curve comes to other states
      let least = Infinity;
      for (let t = 0.15; t < 0.9; t += 0.1) {
        const off = 2 * t * (1 - t) * bend, px = mix(x, u, t) - across * off, py = mix(y, v, t) + along * off;
        for (const [a, b] of others) least = Math.min(least, Math.hypot(a - px, b - py));
      }
      return least;
    };
    const plain = both ? 12 + 0.08 * length : 0, wide = 24 + 0.24 * length;
    const bends = place === 0.5 ? [plain, wide, ...(both ? [] : [-wide]), 2 * wide, -2 * wide] : [plain];
    const bend = bends.find((one) => room(one) > r + 9) ?? bends.reduce((a, b) => room(b) > room(a) ? b : a);
    const mx = (x + u) / 2 - across * bend, my = (y + v) / 2 + along * bend;
    const edge = (px, py, more) => {
      const d = Math.hypot(mx - px, my - py);
      return [round(px + ((mx - px) * (r + more)) / d), round(py + ((my - py) * (r + more)) / d)];
    };
    const lift = bend * 0.5 + (bend < 0 ? -13 : 12);
    const label = [mix(x, u, place) - across * lift, mix(y, v, place) + along * lift];
    return [`M${edge(x, y, 0)}Q${round(mx)},${round(my)} ${edge(u, v, 4)}`, label];
  }

  function machine(box, table, letters, says) {
    clear(box);
    const { delta } = table, n = delta.length, ends = arrows(delta);
    const count = ends.reduce((sum, row, q) => sum + row.size - (row.has(q) ? 1 : 0), 0);
    const crowded = n > LARGE || (n > 4 && count > CROWDED * n);
    const spots = places(delta), r = n > LARGE ? 11 : RADIUS;
    const middle = [0, 1].map((i) => spots.reduce((sum, spot) => sum + spot[i], 0) / n);
    const room = gaps(spots, ends, middle);
    const under = svg("g"), over = svg("g"), labels = svg("g"), lit = svg("g");
    const short = (list) => list.slice(0, 6).map((a) => letters[a]).join(",") + (list.length > 6 ? ",…" : "");
    const drawn = new Map();
    const arrow = (from, to, list, kind, both = ends[to].has(from)) => {
      const [d, at] = curve(spots, from, to, r, both, room.loops[from], crowded ? 0.64 : 0.5);
      const path = svg("path", { d, class: kind, "marker-end": `url(#${kind === "taken" ? "head-on" : "head"})` });
      const label = text(round(at[0]), round(at[1]), short(list), { class: "on-arrow" + (kind === "taken" ? " on" : "") });
      return [path, label];
    };
    if (!crowded) {
      ends.forEach((row, from) => row.forEach((list, to) => {
        const [path, label] = arrow(from, to, list, "arrow");
        under.append(path);
        labels.append(label);
        drawn.set(`${from} ${to}`, [path, label]);
      }));
    } else if (n <= LARGE) {
      ends.forEach((row, from) => row.forEach((_, to) => {
        if (from < to) under.append(line(...spots[from].map(round), ...spots[to].map(round), { class: "hair" }));
      }));
    }
    const nodes = spots.map(([x, y], q) => {
      const group = svg("g", { class: "node", transform: `translate(${round(x)} ${round(y)})` });
      const sink = says[q] !== true && delta[q].every((end) => end === q);
      group.append(svg("circle", { r, class: sink && n > 1 ? "ring sink" : "ring" }));
      if (says[q] === true) group.append(svg("circle", { r: r - 4, class: "inner" }));
      group.append(text(0, n > LARGE ? 3.5 : 5, String(q), { class: n > LARGE ? "name small" : "name" }));
      const said = says[q];
      if (typeof said !== "boolean" && said !== q && !crowded) {
        group.append(text(0, r + 14, said === "" ? "" : `says ${said}`, { class: "says" }));
      }
      over.append(group);
      return group;
    });
    const outward = (d) => [0, 1].map((i) => round(spots[0][i] + d * (i ? Math.sin(room.start) : Math.cos(room.start))));
    under.append(svg("path", { d: `M${outward(r + 32)}L${outward(r + 4)}`, class: "arrow first", "marker-end": "url(#head)" }));
    const dot = svg("circle", { r: 6, class: "traveller" });
    const defs = svg("defs");
    for (const [id, name] of [["head", "tip"], ["head-on", "tip on"]]) {
      defs.append(svg("marker", { id, viewBox: "0 0 10 10", refX: 8, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" },
        svg("path", { d: "M0 0L10 5L0 10z", class: name })));
    }
    box.append(defs, under, lit, labels, over, dot);
    dot.style.display = "none";
    const { x: left, y: top, width: wide, height: high } = box.getBBox();
    const pad = crowded && n <= LARGE ? 40 : 8; // loops of a crowded machine come and go
    box.setAttribute("viewBox", [left - pad, top - pad, wide + 2 * pad, high + 2 * pad].map(round).join(" "));
    box.style.maxWidth = `${Math.round(Math.max(160, wide * 1.35))}px`;
    return {
      crowded,
      update(from, to, letter, progress) {
        nodes.forEach((node, q) => node.classList.toggle("on", q === (progress < 0.6 && from !== null ? from : to)));
        for (const [path, label] of drawn.values()) {
          path.classList.remove("on");
          label.classList.remove("on");
          path.setAttribute("marker-end", "url(#head)");
        }
        clear(lit);
        let path = null;
        if (crowded && n <= LARGE && progress === 1 && letters.length <= LABELLED) {
          ends[to].forEach((list, end) => { if (end !== to || from !== to) lit.append(...arrow(to, end, list, "arrow", end === from)); });
        }
        if (from !== null) {
          if (crowded) {
            const [made, label] = arrow(from, to, [letter], "taken", true);
            lit.append(made, label);
            path = made;
          } else {
            const [own, label] = drawn.get(`${from} ${to}`);
            own.classList.add("on");
            own.setAttribute("marker-end", "url(#head-on)");
            label.classList.add("on");
            path = own;
          }
        }
        const moving = path !== null && progress > 0 && progress < 1;
        dot.style.display = moving ? "" : "none";
        if (moving) {
          const at = path.getPointAtLength(path.getTotalLength() * progress);
          dot.setAttribute("cx", at.x);
          dot.setAttribute("cy", at.y);
        }
      },
    };
  }

  // -- the state of a layer ---------------------------------------------------------------------

  const MOST_BARS = 24;

  // Rows and columns of H that are drawn: the constant one is left out, and of a dense layer only
  // where the start has gone.
  function shown(layer) {
    const rows = runtime.rowNames(layer), columns = runtime.columnNames(layer);
    const constant = rows[rows.length - 1] === "one" && columns[columns.length - 1] === "one";
    const count = (names) => names.length - (constant ? 1 : 0);
    return {
      rows: rows.slice(0, count(rows)),
      columns: layer.kind === "dense" ? ["state"] : columns.slice(0, count(columns)),
    };
  }

  // The unit vector along which a factor acts, in the rows that are drawn; null if it has none.
  function keyOf(move, size) {
    const key = new Array(size).fill(0);
    if (!move.step) return null;
    if (move.kind === "swap") {
      const [, i, j] = move.step;
      key[i] = Math.SQRT1_2;
      key[j] = -Math.SQRT1_2;
    } else if (move.kind === "reflect") return move.step[1];
    else return null;
    return key;
  }

  function state(box, layer) {
    const { rows, columns } = shown(layer);
    if (rows.length === 1) return onLine(box, rows, columns);
    if (rows.length === 2) return inPlane(box, layer, rows, columns);
    if (rows.length === 3) return inSpace(box, rows, columns);
    return asBars(box, rows, columns);
  }

  const vectorColour = (i) => `v${i % 4}`;

  function onLine(box, rows, columns) {
    clear(box);
    box.setAttribute("viewBox", "-130 -60 260 120");
    const x = (value) => round(Math.max(-1.4, Math.min(1.4, value)) * 85);
    box.append(line(-122, 0, 122, 0, { class: "axis" }));
    for (const tick of [-1, 0, 1]) {
      box.append(line(x(tick), -5, x(tick), 5, { class: "axis" }), text(x(tick), 24, number(tick), { class: "tick" }));
    }
    box.append(text(0, 48, rows[0], { class: "caption" }));
    const arrow = svg("line", { class: "vector v0", y1: 0, y2: 0, x1: 0 }), dot = svg("circle", { r: 7, cy: 0, class: "point v0" });
    const value = text(0, -18, "", { class: "value" });
    box.append(arrow, dot, value);
    return (h) => {
      arrow.setAttribute("x2", x(h[0][0]));
      dot.setAttribute("cx", x(h[0][0]));
      value.setAttribute("x", x(h[0][0]));
      value.textContent = number(h[0][0]);
    };
  }

  function inPlane(box, layer, rows, columns) {
    clear(box);
    box.setAttribute("viewBox", "-130 -120 260 240");
    const at = (v) => [v[0] * 85, -v[1] * 85];
    box.append(svg("circle", { r: 85, class: "unit" }), line(-115, 0, 115, 0, { class: "axis" }), line(0, 108, 0, -108, { class: "axis" }));
    box.append(text(126, 16, rows[0], { class: "tick end" }), text(6, -108, rows[1], { class: "tick begin" }));
    if (rows[0] === "x" && rows[1] === "y") {
      const m = layer.labels.length, every = Math.ceil(m / 24);
      layer.labels.forEach((_, p) => {
        const angle = (2 * Math.PI * p) / m, [cx, cy] = at([Math.cos(angle), Math.sin(angle)]);
        box.append(svg("circle", { cx: round(cx), cy: round(cy), r: m > 24 ? 1.5 : 3, class: "spot" }));
        if (p % every === 0) box.append(text(round(cx * 1.19), round(cy * 1.19 + 4), String(p), { class: "tick halo" }));
      });
    }
    const mirrors = svg("g"), vectors = columns.map((_, c) => vector(box, c, columns));
    box.insertBefore(mirrors, vectors[0].node);
    return (h, moves, active) => {
      clear(mirrors);
      moves.forEach((move, i) => {
        const key = keyOf(move, 2);
        if (!key) return;
        const [x, y] = at([-key[1] * 1.3, key[0] * 1.3]);
        mirrors.append(line(round(-x), round(-y), round(x), round(y), { class: i === active ? "mirror on" : "mirror" }));
      });
      vectors.forEach((own, c) => own.to(at([h[0][c], h[1][c]])));
    };
  }

  function vector(box, c, columns) {
    const shaft = svg("line", { class: `vector ${vectorColour(c)}`, x1: 0, y1: 0 });
    const dot = svg("circle", { r: 6.5, class: `point ${vectorColour(c)}` });
    const name = text(0, 0, columns.length > 1 ? columns[c] : "", { class: `value halo ${vectorColour(c)}` });
    const node = svg("g", {}, shaft, dot, name);
    box.append(node);
    return {
      node,
      to([x, y]) {
        shaft.setAttribute("x2", round(x));
        shaft.setAttribute("y2", round(y));
        dot.setAttribute("cx", round(x));
        dot.setAttribute("cy", round(y));
        name.setAttribute("x", round(x + (x < 0 ? -10 : 10)));
        name.setAttribute("y", round(y - 10));
        name.setAttribute("text-anchor", x < -60 ? "end" : "start");
      },
    };
  }

  function inSpace(box, rows, columns) {
    clear(box);
    box.setAttribute("viewBox", "-130 -120 260 240");
    const [turn, tilt] = [0.5, 0.36]; // a view in which no mirror of a swap is seen from its edge
    const at = ([a, b, c]) => [
      85 * (b * Math.cos(turn) - a * Math.sin(turn)),
      85 * ((a * Math.cos(turn) + b * Math.sin(turn)) * Math.sin(tilt) - c * Math.cos(tilt)),
    ];
    box.append(svg("circle", { r: 85, class: "unit" }));
    const axes = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    axes.forEach((axis, i) => {
      const [x, y] = at(axis.map((part) => part * 1.22)), [a, b] = at(axis.map((part) => part * -1));
      box.append(line(round(a), round(b), round(x), round(y), { class: "axis" }));
      box.append(text(round(x), round(y + (i === 2 ? -7 : 17)), rows[i], { class: "tick halo" }));
    });
    const mirrors = svg("g"), vectors = columns.map((_, c) => vector(box, c, columns));
    box.insertBefore(mirrors, vectors[0].node);
    return (h, moves, active) => {
      clear(mirrors);
      moves.forEach((move, i) => {
        const key = keyOf(move, 3);
        if (!key) return;
        const points = disc(key).map(at).map((p) => p.map(round).join(","));
        mirrors.append(svg("polygon", { points: points.join(" "), class: i === active ? "plane on" : "plane" }));
      });
      vectors.forEach((own, c) => own.to(at([h[0][c], h[1][c], h[2][c]])));
    };
  }

  // The unit disc that a unit vector is perpendicular to.
  function disc([a, b, c]) {
    const other = Math.abs(c) < 0.9 ? [0, 0, 1] : [1, 0, 0];
    const crossed = ([p, q, r], [s, t, u]) => [q * u - r * t, r * s - p * u, p * t - q * s];
    let u = crossed([a, b, c], other);
    const length = Math.hypot(...u);
    u = u.map((x) => x / length);
    const v = crossed([a, b, c], u);
    return Array.from({ length: 40 }, (_, i) => {
      const angle = (2 * Math.PI * i) / 40;
      return u.map((x, j) => Math.cos(angle) * x + Math.sin(angle) * v[j]);
    });
  }

  function asBars(box, rows, columns) {
    clear(box);
    const count = Math.min(rows.length, MOST_BARS), high = count > 12 ? 13 : 18, top = columns.length > 1 ? 26 : 12;
    const longest = Math.min(20, Math.max(...rows.slice(0, count).map((name) => name.length)));
    const left = 12 + longest * 6.1, lane = Math.max(46, (300 - left) / columns.length), wide = left + lane * columns.length + 8;
    const more = rows.length > count ? 18 : 0;
    box.setAttribute("viewBox", `0 0 ${round(wide)} ${top + count * high + 8 + more}`);
    const half = lane / 2 - 5, bars = [];
    columns.forEach((name, c) => {
      const x = left + lane * (c + 0.5);
      if (columns.length > 1) box.append(text(round(x), 15, name, { class: `tick ${vectorColour(c)}` }));
      box.append(line(x, top - 3, x, top + count * high, { class: "axis" }));
    });
    for (let r = 0; r < count; r++) {
      const y = top + r * high, name = rows[r];
      box.append(text(round(left - 5), round(y + high * 0.72), name.length > 20 ? name.slice(0, 19) + "…" : name, { class: "tick end" }));
      bars.push(columns.map((_, c) => {
        const bar = svg("rect", { y: y + 2, height: high - 4, rx: 2, class: `bar ${vectorColour(c)}` });
        const tiny = svg("circle", { cx: round(left + lane * (c + 0.5)), cy: round(y + high / 2), r: 3, class: `tiny ${vectorColour(c)}` });
        box.append(bar, tiny);
        return { bar, tiny, x: left + lane * (c + 0.5) };
      }));
    }
    if (more) box.append(text(left, top + count * high + 16, `… ${rows.length - count} more rows`, { class: "tick begin" }));
    return (h) => bars.forEach((row, r) => row.forEach(({ bar, tiny, x }, c) => {
      const value = Math.max(-1.1, Math.min(1.1, h[r][c])), length = Math.abs(value) * half;
      bar.setAttribute("x", round(value < 0 ? x - length : x));
      bar.setAttribute("width", round(length));
      tiny.style.display = h[r][c] !== 0 && length < 1 ? "" : "none"; // held, shrunk by a reset
    }));
  }

  // -- eigenvalues ------------------------------------------------------------------------------

  function spectrum(box) {
    clear(box);
    box.setAttribute("viewBox", "-130 -120 260 240");
    box.append(svg("circle", { r: 90, class: "unit" }), line(-115, 0, 115, 0, { class: "axis" }), line(0, 108, 0, -108, { class: "axis" }));
    box.append(text(-101, 17, "−1", { class: "tick" }), text(100, 17, "1", { class: "tick" }), text(8, -96, "i", { class: "tick" }));
    const range = line(0, 0, 90, 0, { class: "range" }), others = svg("g"), own = svg("g");
    box.append(range, others, own);
    const grouped = (values) => {
      const found = [];
      for (const [re, im] of values) {
        const same = found.find((one) => Math.hypot(one.re - re, one.im - im) < 0.015);
        if (same) same.count++;
        else found.push({ re, im, count: 1 });
      }
      return found;
    };
    return (values, all, low) => {
      range.setAttribute("x1", round(low * 90));
      clear(others);
      clear(own);
      for (const { re, im } of grouped(all)) others.append(svg("circle", { cx: round(re * 90), cy: round(-im * 90), r: 4, class: "other" }));
      for (const { re, im, count } of grouped(values)) {
        own.append(svg("circle", { cx: round(re * 90), cy: round(-im * 90), r: 7, class: re < -0.005 ? "eigen below" : "eigen" }));
        if (count > 1) own.append(text(round(re * 90 + (re > 0.9 ? -4 : 0)), round(-im * 90 - 12), `×${count}`, { class: "value halo" }));
      }
    };
  }

  // -- how clear the answer is ------------------------------------------------------------------

  function signal(box) {
    const HIGH = 150, LEFT = 54, BOTTOM = 24, FLOOR = -4;
    return (values, right, at, letters) => {
      clear(box);
      const WIDE = Math.max(300, Math.min(560, box.clientWidth || 520)); // letters as large as elsewhere
      box.setAttribute("viewBox", `0 0 ${WIDE} ${HIGH}`);
      const x = (t) => LEFT + 12 + ((WIDE - LEFT - 26) * t) / Math.max(1, values.length - 1);
      const y = (value) => 12 + ((HIGH - BOTTOM - 12) * Math.max(FLOOR, Math.min(0.15, Math.log10(Math.max(value, 1e-9))))) / FLOOR;
      for (const [value, name] of [[1, "1"], [0.1, "1/10"], [0.01, "1/100"], [1e-3, "1/1000"]]) {
        box.append(line(LEFT, y(value), WIDE, y(value), { class: "grid" }), text(LEFT - 6, y(value) + 4, name, { class: "tick end" }));
      }
      const edge = y(runtime.RESOLUTION);
      box.append(svg("rect", { x: LEFT, y: edge, width: WIDE - LEFT, height: HIGH - BOTTOM - edge + 4, class: "unread" }));
      box.append(line(LEFT, edge, WIDE, edge, { class: "limit" }), text(LEFT + 8, edge + 15, "not read below 1/256", { class: "tick begin" }));
      if (values.length) {
        box.append(svg("polyline", { points: values.map((value, t) => `${round(x(t))},${round(y(value))}`).join(" "), class: "curve" }));
        const every = Math.ceil((values.length * 14) / (WIDE - LEFT));
        values.forEach((value, t) => {
          box.append(svg("circle", { cx: round(x(t)), cy: round(y(value)), r: t === at - 1 ? 6 : values.length > 60 ? 2.5 : 4, class: right[t] ? "mark" : "mark wrong" }));
          if (t % every === 0 && letters[t].length < 3) box.append(text(round(x(t)), HIGH - 6, letters[t], { class: t === at - 1 ? "tick on" : "tick" }));
        });
      }
    };
  }

  // -- trained beside exact ---------------------------------------------------------------------

  // Eigenvalues of a trained layer for each token on the line from -1 to 1, the exact ones above.
  function trained(box, run, exact) {
    clear(box);
    const tokens = Object.keys(run.eigenvalues), HIGH = 40;
    box.setAttribute("viewBox", `0 0 320 ${tokens.length * HIGH + 34}`);
    const x = (value) => 60 + (value + 1) * 122;
    const [low] = run.eigen_range;
    tokens.forEach((token, row) => {
      const y = 22 + row * HIGH;
      box.append(text(10, y + 4, `reads ${token}`, { class: "tick begin" }));
      box.append(line(x(-1), y, x(1), y, { class: "axis" }), line(x(low), y, x(1), y, { class: "range" }));
      for (const { value, share } of run.eigenvalues[token]) {
        box.append(svg("circle", { cx: round(x(value)), cy: y, r: round(3 + 4 * Math.sqrt(share)), class: value < -0.005 ? "eigen below" : "eigen" }));
      }
      const at = x(exact[token]);
      box.append(svg("path", { d: `M${at - 6} ${y - 15}h12l-6 9z`, class: "exact" }));
    });
    const bottom = 22 + tokens.length * HIGH - 8;
    for (const tick of [-1, 0, 1]) box.append(text(x(tick), bottom + 10, number(tick), { class: "tick" }));
  }

  return { clear, machine, mix, number, shown, signal, spectrum, state, svg, trained };
})();
