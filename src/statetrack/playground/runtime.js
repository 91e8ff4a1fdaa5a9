"use strict";
// Runs a Program as statetrack.compiler writes it: H <- A H + B, label = argmax of what is read.
// No drawing and no document in here; the same file runs in node.
//
// `low` closes the range of eigenvalues from [-1, 1] to [low, 1]. A factor I - beta k k' then has
// beta at most 1 - low, so that its eigenvalue along k is not below low; an entry of a diagonal
// transition is raised to low where it is below. Gates, writes, queries, readouts and tables stay
// as compiled. At low = -1 nothing is changed.

const runtime = (() => {
  const RESOLUTION = 1 / 256; // the last bit of bfloat16 next to 1

  const zeros = (rows, columns) => Array.from({ length: rows }, () => new Array(columns).fill(0));
  const copy = (matrix) => matrix.map((row) => row.slice());
  const identity = (size) => zeros(size, size).map((row, i) => (row[i] = 1, row));

  const rowNames = (layer) => layer.kind === "delta" ? layer.rows
    : layer.kind === "diagonal" ? layer.coordinates : layer.labels;
  const columnNames = (layer) => layer.kind === "delta" ? layer.columns
    : layer.kind === "diagonal" ? ["h"] : layer.labels;
  const symbolName = (layer, symbol) => layer.kind === "delta" ? layer.symbols[symbol].name
    : layer.symbols[symbol];

  // The label a symbol leaves behind whatever was there, or -1: what is read is what was before.
  const leaves = (layer, symbol) => layer.kind === "delta" ? layer.symbols[symbol].leaves
    : layer.kind === "diagonal" ? layer.written[symbol] : -1;

  // One factor on H, in place. `write` false leaves out what it writes.
  function apply(step, h, low, write) {
    const beta = Math.min(2, 1 - low);
    const [kind, ...rest] = step;
    if (kind === "swap") {
      const [i, j] = rest;
      if (beta === 2) [h[i], h[j]] = [h[j], h[i]];
      else {
        for (let c = 0; c < h[i].length; c++) {
          const moved = (beta / 2) * (h[i][c] - h[j][c]);
          h[i][c] -= moved;
          h[j][c] += moved;
        }
      }
    } else if (kind === "reflect") {
      const key = rest[0];
      for (let c = 0; c < h[0].length; c++) {
        let along = 0;
        for (let r = 0; r < key.length; r++) along += key[r] * h[r][c];
        for (let r = 0; r < key.length; r++) h[r][c] -= beta * key[r] * along;
      }
    } else if (kind === "project") h[rest[0]].fill(0);
    else if (write) h[rest[0]] = rest[1].slice();
    else h[rest[0]].fill(0);
  }

  function start(layer) {
    if (layer.kind === "dense") return identity(layer.labels.length);
    if (layer.kind === "diagonal") return layer.start.map((value) => [value]);
    const h = zeros(layer.rows.length, layer.columns.length);
    for (const step of layer.start) apply(step, h, -1, true);
    return h;
  }

  const decay = (layer, symbol, low) => layer.decay[symbol].map((a) => Math.max(a, low));

  // H after each factor of a symbol: [{kind, step, h}], at least one.
  function moves(layer, state, symbol, low = -1) {
    if (layer.kind === "dense") {
      const matrix = layer.matrices[symbol];
      return [{ kind: "matrix", h: multiply(matrix, state) }];
    }
    if (layer.kind === "diagonal") {
      const a = decay(layer, symbol, low);
      const b = layer.add[symbol];
      return [{ kind: "diagonal", a, b, h: state.map(([x], i) => [a[i] * x + b[i]]) }];
    }
    const { gate, steps } = layer.symbols[symbol];
    const found = [];
    let h = copy(state);
    if (gate !== 1) {
      h = h.map((row) => row.map((x) => gate * x));
      found.push({ kind: "gate", gate, h: copy(h) });
    }
    for (const step of steps) {
      apply(step, h, low, true);
      found.push({ kind: step[0], step, h: copy(h) });
    }
    return found.length ? found : [{ kind: "keep", h }];
  }

  function multiply(a, b) {
    return a.map((row) => b[0].map((_, c) => {
      let sum = 0;
      for (let r = 0; r < row.length; r++) if (row[r] !== 0) sum += row[r] * b[r][c];
      return sum;
    }));
  }

  // A of a symbol, with the range closed to `low`.
  function transition(layer, symbol, low = -1) {
    if (layer.kind === "dense") return layer.matrices[symbol];
    if (layer.kind === "diagonal") {
      const a = decay(layer, symbol, low);
      return identity(a.length).map((row, i) => row.map((x) => x * a[i]));
    }
    const { gate, steps } = layer.symbols[symbol];
    const matrix = identity(layer.rows.length).map((row) => row.map((x) => gate * x));
    for (const step of steps) apply(step, matrix, low, false);
    return matrix;
  }

  // A score for each label.
  function scores(layer, h, symbol) {
    if (layer.kind === "dense") return h.map((row) => row[0]);
    if (layer.kind === "diagonal") {
      const left = h.map(([x], i) => x - layer.add[symbol][i]);
      return layer.codes.map((code) => code.reduce((sum, sign, i) => sum + sign * left[i], 0));
    }
    const read = [];
    for (const query of layer.symbols[symbol].queries) {
      for (let c = 0; c < layer.columns.length; c++) {
        let sum = 0;
        for (let r = 0; r < query.length; r++) sum += query[r] * h[r][c];
        read.push(sum);
      }
    }
    return layer.readout.map((row) => row.reduce((sum, weight, i) => sum + weight * read[i], 0));
  }

  // The label with the largest score, and how far it is ahead of the next.
  function best(values) {
    let label = 0;
    for (let i = 1; i < values.length; i++) if (values[i] > values[label]) label = i;
    let next = -Infinity;
    values.forEach((value, i) => { if (i !== label && value > next) next = value; });
    return { label, lead: values[label] - next };
  }

  // The whole word. For each layer what it read, held and showed; the machine's states beside it.
  // A layer that shows a label which cannot occur there leaves those behind it without input: they
  // stop, and there is no state (null) from then on.
  function run(program, letters, low = -1) {
    const layers = program.stages.map(({ layer }) => ({
      before: [], frames: [], symbols: [], labels: [], held: [], leads: [], h: start(layer),
    }));
    const states = [];
    let stuck = program.stages.length; // the first layer without input
    for (const letter of letters) {
      let context = letter;
      program.stages.forEach(({ layer, symbol, after }, i) => {
        const own = layers[i];
        if (i >= stuck) {
          for (const list of [own.symbols, own.labels, own.held, own.leads]) list.push(null);
          own.before.push(own.h);
          own.frames.push([{ kind: "stuck", h: own.h }]);
          return;
        }
        const read = symbol[context];
        const frames = moves(layer, own.h, read, low);
        own.before.push(own.h);
        own.frames.push(frames);
        own.h = frames[frames.length - 1].h;
        const { label, lead } = best(scores(layer, own.h, read));
        own.symbols.push(read);
        own.labels.push(label);
        own.leads.push(lead);
        const left = leaves(layer, read);
        own.held.push(left < 0 ? label : left);
        context = after[context][label];
        if (context < 0) stuck = Math.min(stuck, i + 1);
      });
      states.push(context < 0 || stuck < program.stages.length ? null : context);
    }
    return { states, layers };
  }

  // The same with what the exact program does beside it. `signal` is how clear the least clear
  // layer's label is, as a part of its clearness at low = -1; below RESOLUTION it is not read.
  function compare(program, letters, low) {
    const exact = run(program, letters);
    const closed = low === -1 ? exact : run(program, letters, low);
    const signal = letters.map((_, t) => closed.layers.reduce((least, own, i) => {
      const full = exact.layers[i].leads[t];
      const ratio = own.leads[t] === null ? 0 : Number.isFinite(full) ? own.leads[t] / full : 1;
      return Math.min(least, ratio);
    }, Infinity));
    const read = closed.states.map((state, t) => signal[t] < RESOLUTION ? null : state);
    return { exact, closed, signal, read };
  }

  // -- eigenvalues ------------------------------------------------------------------------------

  // Of a real matrix, as [re, im]. It is first split where the graph of its entries falls apart
  // into strongly connected parts, so that what is nilpotent or a cycle is found exactly.
  function eigenvalues(matrix) {
    return components(matrix).flatMap((part) => {
      const block = part.map((i) => part.map((j) => matrix[i][j]));
      return part.length === 1 ? [[block[0][0], 0]] : part.length === 2 ? pair(block) : qr(block);
    });
  }

  function components(matrix) {
    const n = matrix.length, index = new Array(n).fill(-1), low = new Array(n), on = new Array(n);
    const stack = [], found = [];
    let next = 0;
    const visit = (v) => {
      index[v] = low[v] = next++;
      stack.push(v);
      on[v] = true;
      for (let w = 0; w < n; w++) {
        if (w === v || matrix[v][w] === 0) continue;
        if (index[w] < 0) { visit(w); low[v] = Math.min(low[v], low[w]); }
        else if (on[w]) low[v] = Math.min(low[v], index[w]);
      }
      if (low[v] === index[v]) {
        const part = [];
        for (let w = -1; w !== v;) { w = stack.pop(); on[w] = false; part.push(w); }
        found.push(part);
      }
    };
    for (let v = 0; v < n; v++) if (index[v] < 0) visit(v);
    return found;
  }

  function pair([[a, b], [c, d]]) {
    const mean = (a + d) / 2, half = (a - d) / 2, square = half * half + b * c;
    const root = Math.sqrt(Math.abs(square));
    return square >= 0 ? [[mean + root, 0], [mean - root, 0]] : [[mean, root], [mean, -root]];
  }

  const sub = (x, y) => [x[0] - y[0], x[1] - y[1]];
  const add = (x, y) => [x[0] + y[0], x[1] + y[1]];
  const times = (x, y) => [x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]];
  const size = (x) => Math.hypot(x[0], x[1]);
  function root(x) {
    const r = size(x), re = Math.sqrt(Math.max(0, (r + x[0]) / 2));
    const im = Math.sqrt(Math.max(0, (r - x[0]) / 2));
    return [re, x[1] < 0 ? -im : im];
  }

  // Shifted QR on the Hessenberg form, in complex numbers.
  function qr(matrix) {
    const h = hessenberg(copy(matrix)).map((row) => row.map((x) => [x, 0]));
    const scale = Math.max(...matrix.flat().map(Math.abs), 1e-300);
    const found = [];
    let n = matrix.length - 1;
    for (let round = 0; n >= 0;) {
      let first = n;
      while (first > 0) {
        const around = size(h[first][first]) + size(h[first - 1][first - 1]) || scale;
        if (size(h[first][first - 1]) < 1e-16 * around) { h[first][first - 1] = [0, 0]; break; }
        first--;
      }
      if (first === n) { found.push(h[n][n]); n--; round = 0; continue; }
      if (++round > 300) { for (let i = first; i <= n; i++) found.push(h[i][i]); n = first - 1; round = 0; continue; }
      let shift;
      if (round % 11 === 10) shift = [size(h[n][n - 1]) + h[n][n][0], h[n][n][1] + 0.3 * scale];
      else {
        const a = h[n - 1][n - 1], d = h[n][n];
        const half = times(sub(a, d), [0.5, 0]), mean = times(add(a, d), [0.5, 0]);
        const r = root(add(times(half, half), times(h[n - 1][n], h[n][n - 1])));
        const one = add(mean, r), two = sub(mean, r);
        shift = size(sub(one, d)) < size(sub(two, d)) ? one : two;
      }
      turn(h, first, n, shift);
    }
    return found.map(([re, im]) => [re, Math.abs(im) < 1e-9 * scale ? 0 : im]);
  }

  function hessenberg(a) {
    const n = a.length;
    for (let m = 1; m < n - 1; m++) {
      let pivot = m;
      for (let i = m; i < n; i++) if (Math.abs(a[i][m - 1]) > Math.abs(a[pivot][m - 1])) pivot = i;
      if (a[pivot][m - 1] === 0) continue;
      [a[pivot], a[m]] = [a[m], a[pivot]];
      for (const row of a) [row[pivot], row[m]] = [row[m], row[pivot]];
      for (let i = m + 1; i < n; i++) {
        const factor = a[i][m - 1] / a[m][m - 1];
        if (factor === 0) continue;
        for (let j = m - 1; j < n; j++) a[i][j] -= factor * a[m][j];
        for (let j = 0; j < n; j++) a[j][m] += factor * a[j][i];
      }
    }
    return a;
  }

  // One QR step on rows and columns first..last: subtract the shift, rotate, add it back.
  function turn(h, first, last, shift) {
    const rotations = [];
    for (let i = first; i <= last; i++) h[i][i] = sub(h[i][i], shift);
    for (let i = first; i < last; i++) {
      const a = h[i][i], b = h[i + 1][i], r = Math.hypot(size(a), size(b));
      const c = r === 0 ? [1, 0] : [a[0] / r, -a[1] / r], s = r === 0 ? [0, 0] : [b[0] / r, -b[1] / r];
      rotations.push([c, s]);
      for (let j = i; j <= last; j++) {
        const x = h[i][j], y = h[i + 1][j];
        h[i][j] = add(times(c, x), times(s, y));
        h[i + 1][j] = sub(times([c[0], -c[1]], y), times([s[0], -s[1]], x));
      }
    }
    for (let i = first; i < last; i++) {
      const [c, s] = rotations[i - first];
      for (let j = first; j <= Math.min(i + 1, last); j++) {
        const x = h[j][i], y = h[j][i + 1];
        h[j][i] = add(times([c[0], -c[1]], x), times([s[0], -s[1]], y));
        h[j][i + 1] = sub(times(c, y), times(s, x));
      }
    }
    for (let i = first; i <= last; i++) h[i][i] = add(h[i][i], shift);
  }

  return {
    RESOLUTION, best, columnNames, compare, eigenvalues, moves, rowNames, run, scores, start,
    symbolName, transition,
  };
})();
if (typeof module !== "undefined") module.exports = runtime;
