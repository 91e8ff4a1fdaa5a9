"use strict";
// The page: what is chosen, typed, painted and played, and how it is shown.

(() => {
  const LONGEST = 200; // letters of a word
  const GHOSTS = 3; // empty places behind it
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#882255"];

  const data = JSON.parse(document.getElementById("data").textContent);
  const entries = new Map(data.entries.map((entry) => [entry.text, entry]));
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const get = (id) => document.getElementById(id);
  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    for (const child of children) if (child !== "") node.append(child);
    return node;
  };
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const letterName = (letter) => Array.isArray(letter) ? `(${letter.map(letterName).join(",")})` : String(letter);
  const colour = (letter) => COLOURS[letter % COLOURS.length];

  // What is shown. `t` letters have been read; `progress` below 1 is on the way to the t-th.
  const app = { entry: null, chosen: 0, alphabet: "", word: [], t: 0, progress: 1, low: -1, brush: 0, focus: 0 };
  let names = []; // of the letters
  let says = []; // what each state says
  let found = null; // the run of the word
  let views = null; // the pictures
  let playing = false, frame = 0, asked = 0;

  const current = () => app.entry.programs[app.chosen];
  const program = () => current().program;
  const machine = () => program().machine;
  const single = () => names.every((name) => [...name].length === 1);

  // -- which machine ----------------------------------------------------------------------------

  function tell(text, wrong = false) {
    get("message").textContent = text;
    get("message").classList.toggle("wrong", wrong);
    get("machine").setAttribute("aria-invalid", String(wrong));
  }

  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

  async function entryFor(text, alphabet) {
    const known = alphabet ? undefined : entries.get(text);
    if (known) return known;
    if (data.secret === null) {
      throw new Error(`This page holds ${entries.size} machines and compiles nothing. For this one run: statetrack playground ${quoted(text)}`);
    }
    const response = await fetch("/compile", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Statetrack": data.secret },
      body: JSON.stringify({ machine: text, alphabet: alphabet || null }),
    }).catch(() => { throw new Error("The server does not answer; was `statetrack playground` ended?"); });
    const answer = await response.json();
    if (answer.error) throw new Error(answer.error);
    if (!alphabet) entries.set(text, answer.entry);
    return answer.entry;
  }

  // Shows the machine that a text means; what it cannot be is said in the library's own line.
  async function choose(text, alphabet = "", then = {}) {
    const mine = ++asked;
    pause();
    text = text.trim();
    if (!text) return tell("Type a regular expression, such as (a|b)*ab, or a name, such as s3.", true);
    const waiting = setTimeout(() => { if (mine === asked) tell(`Compiling ${text} …`); }, 150);
    try {
      const entry = await entryFor(text, alphabet);
      if (mine !== asked) return;
      tell("");
      show(entry, alphabet, then);
    } catch (error) {
      if (mine === asked) tell(error.message, true);
    } finally {
      clearTimeout(waiting);
    }
  }

  function show(entry, alphabet, then) {
    Object.assign(app, { entry, alphabet, chosen: 0, brush: 0, focus: 0, progress: 1, low: then.low ?? app.low });
    const wanted = entry.programs.findIndex((one) => one.method === then.method);
    if (wanted >= 0) app.chosen = wanted;
    const table = machine();
    names = table.alphabet.map(letterName);
    says = table.outputs.map((output) => table.output_names ? table.output_names[output] : output);
    app.word = then.word === undefined ? entry.word.slice() : parse(then.word).word;
    app.t = Math.min(then.t ?? 1, app.word.length);
    get("machine").value = entry.text;
    get("alphabet").value = alphabet;
    get("gallery").value = data.gallery.some((one) => one.text === entry.text) ? entry.text : "";
    get("name").textContent = entry.title;
    get("about").textContent = entry.about;
    get("facts").replaceChildren(...entry.facts.map((fact) => make("li", {}, fact.trim())));
    document.title = `${entry.title}: statetrack playground`;
    showBrushes();
    showMethods();
    showFamilies();
    views = { machine: draw.machine(get("diagram"), table, names, says), signal: draw.signal(get("signal")), layers: [] };
    const many = table.delta.length > 30 ? "Of the many arrows, the one taken is drawn." : "Of the many arrows, those out of the current state are drawn.";
    const rings = says.some((said) => said === true) ? "A double ring accepts. A dashed ring is never left." : "";
    get("machine-note").textContent = views.machine.crowded ? many : rings;
    showNetwork();
    compute();
  }

  function showBrushes() {
    get("brushes").replaceChildren(...names.map((name, letter) => {
      const input = make("input", { type: "radio", name: "brush", value: letter, "aria-label": `letter ${name}` });
      input.checked = letter === app.brush;
      input.addEventListener("change", () => { app.brush = letter; });
      const label = make("label", { class: "brush" }, input, make("span", { "aria-hidden": "true" }, name));
      label.style.setProperty("--letter", colour(letter));
      return label;
    }));
  }

  function showMethods() {
    get("methods").replaceChildren(...app.entry.programs.map((one, i) => {
      const input = make("input", { type: "radio", name: "method", value: one.method });
      input.checked = i === app.chosen;
      input.addEventListener("change", () => { app.chosen = i; showNetwork(); compute(); });
      return make("label", { class: "method" }, input, make("span", {}, one.method + (i === 0 ? " (auto)" : "")));
    }));
    get("refused").replaceChildren(...app.entry.refused.map(({ method, why }) => make("li", {}, make("b", {}, method), `: ${why}`)));
    get("refused-box").hidden = app.entry.refused.length === 0;
  }

  function showFamilies() {
    get("families").replaceChildren(...app.entry.families.map((one) => {
      const evidence = one.answer === "open" ? "" : [one.evidence, one.source].filter(Boolean).join(", ");
      return make("li", { class: one.answer },
        make("h3", {}, make("span", { class: "verdict" }, { can: "✓ can", cannot: "✗ cannot", open: "? open" }[one.answer]), " ", one.family),
        make("p", {}, one.reason, evidence ? " " : "", evidence ? make("span", { class: "soft" }, `(${evidence})`) : ""),
        one.built ? make("p", { class: "soft" }, `Smallest built here: ${one.built}`) : "",
        make("p", { class: "soft" }, one.models));
    }));
    const assumed = [...new Set(app.entry.families.map((one) => one.assuming).filter(Boolean))];
    get("caveats").replaceChildren(...assumed.map((text) => make("p", { class: "note" }, `Cannot: ${text}.`)));
  }

  // -- the network ------------------------------------------------------------------------------

  function showNetwork() {
    const one = current();
    get("cost").textContent = one.cost;
    get("why").textContent = `${one.why[0].toUpperCase()}${one.why.slice(1)}. ${one.program.exact ? "Exact at every length." : "Not exact: rotations drift with length."}`;
    views.layers = [];
    get("layers").replaceChildren(...program().stages.map(({ layer }, i) => {
      const built = one.layers[i];
      const factors = built.options.num_householders;
      const line = make("p", { class: "reads" }), list = make("ol", { class: "factors", "aria-label": "factors of this token" });
      const label = `layer-${i}`;
      const pictures = [
        ["The state", draw.svg("svg", { role: "img", "aria-labelledby": `${label}-state` }), `${label}-state`],
        ["Eigenvalues of A", draw.svg("svg", { role: "img", "aria-labelledby": `${label}-eigen` }), `${label}-eigen`],
      ].map(([, box, id]) => ({ box, caption: make("figcaption", { id }) }));
      const options = Object.entries(built.options).map(([key, value]) => `${key}=${Array.isArray(value) ? `(${value.join(", ")})` : value}`);
      const card = make("div", { class: "layer" },
        make("div", { class: "line" }, make("h3", {}, `Layer ${i + 1}: ${built.layer}`), make("p", { class: "soft" }, [factors ? `${plural(factors, "Householder")} per token` : "", stateSize(layer)].filter(Boolean).join(" · "))),
        line,
        make("div", { class: "pictures" }, ...pictures.map(({ box, caption }) => make("figure", {}, box, caption))),
        list,
        make("details", {}, make("summary", {}, "As built in PyTorch"), make("p", { class: "mono-wrap" }, `${built.layer}(${[`d_model=${built.d_model}`, ...options].join(", ")})`)));
      views.layers.push({
        layer, card, line, list, eigen: new Map(), all: null,
        state: draw.state(pictures[0].box, layer), stateCaption: pictures[0].caption,
        spectrum: draw.spectrum(pictures[1].box), spectrumCaption: pictures[1].caption,
      });
      return card;
    }));
  }

  const stateSize = (layer) => `H has ${runtime.rowNames(layer).length} × ${runtime.columnNames(layer).length} numbers`;

  function compute() {
    for (const view of views.layers) { view.eigen.clear(); view.all = null; }
    found = runtime.compare(program(), app.word, app.low);
    found.states = [0];
    for (const letter of app.word) found.states.push(machine().delta[found.states.at(-1)][letter]);
    showWord();
    showRange();
    render();
  }

  function eigen(view, symbol) {
    if (!view.eigen.has(symbol)) view.eigen.set(symbol, runtime.eigenvalues(runtime.transition(view.layer, symbol, app.low)));
    return view.eigen.get(symbol);
  }

  function everyEigen(view) {
    if (!view.all) view.all = view.layer.symbols.slice(0, 40).flatMap((_, symbol) => eigen(view, symbol));
    return view.all;
  }

  function moveName(layer, move) {
    const rows = runtime.rowNames(layer), row = (i) => `“${rows[i]}”`;
    const beta = ` (β = ${draw.number(Math.min(2, 1 - app.low))})`;
    if (move.kind === "gate") return move.gate === 0 ? "gate 0: forget" : `gate ${draw.number(move.gate)}: shrink`;
    if (move.kind === "swap") return `swap ${row(move.step[1])}, ${row(move.step[2])}${beta}`;
    if (move.kind === "reflect") return `reflect${beta}`;
    if (move.kind === "project") return `clear ${row(move.step[1])} (β = 1)`;
    if (move.kind === "write") return `overwrite ${row(move.step[1])} (β = 1)`;
    if (move.kind === "diagonal") {
      const vector = (values) => values.length === 1 ? draw.number(values[0]) : `(${values.map(draw.number).join(", ")})`;
      return `h ← ${vector(move.a)} ${move.a.length === 1 ? "·" : "∘"} h${move.b.every((x) => x === 0) ? "" : ` + ${vector(move.b)}`}`;
    }
    return { matrix: "A H", keep: "keep", stuck: "no input" }[move.kind];
  }

  // -- the word ---------------------------------------------------------------------------------

  // Letters of a text; `wrong` is what is none.
  function parse(text) {
    const parts = single() ? [...text.replace(/\s/g, "")] : text.split(/\s+|,(?![^(]*\))/).filter(Boolean);
    const word = [], number = new Map(names.map((name, i) => [name, i]));
    for (const part of parts) {
      if (!number.has(part)) return { word, wrong: part };
      word.push(number.get(part));
    }
    return { word: word.slice(0, LONGEST), wrong: null, cut: word.length > LONGEST };
  }

  const spell = (word) => word.map((letter) => names[letter]).join(single() ? "" : " ");

  function setWord(word, t = app.t) {
    pause();
    app.word = word.slice(0, LONGEST);
    app.t = Math.max(0, Math.min(t, app.word.length));
    app.progress = 1;
    compute();
  }

  function typed() {
    const { word, wrong, cut } = parse(get("word").value);
    const shown = names.slice(0, 20).join(" ") + (names.length > 20 ? " …" : "");
    get("word").setAttribute("aria-invalid", String(wrong !== null));
    note(wrong === null ? cut ? `The first ${LONGEST} letters are read.` : "" : `“${wrong}” is no letter of this machine. Its letters: ${shown}`);
    if (wrong === null) setWord(word, Math.min(app.t, word.length) || Math.min(1, word.length));
  }

  const HINT = get("word-note").textContent;
  function note(text) { get("word-note").textContent = text || HINT; }

  function paint(i, letter) {
    const word = app.word.slice();
    while (word.length <= i && word.length < LONGEST) word.push(letter);
    if (i < word.length) word[i] = letter;
    setWord(word, i + 1);
    get("word").value = spell(app.word);
    note("");
  }

  function showWord() {
    const strip = get("strip"), count = Math.min(LONGEST, app.word.length + GHOSTS);
    while (strip.children.length > count) strip.lastChild.remove();
    while (strip.children.length < count) {
      strip.append(make("button", { type: "button", class: "cell", tabindex: -1 }, make("span", { class: "letter" }), make("span", { class: "machine" }), make("span", { class: "network" })));
    }
    if (document.activeElement !== get("word")) get("word").value = spell(app.word);
    get("position").max = app.word.length;
    app.focus = Math.min(app.focus, count - 1);
    [...strip.children].forEach((cell, i) => {
      const ghost = i >= app.word.length, [letter, own, other] = cell.children;
      cell.classList.toggle("ghost", ghost);
      cell.tabIndex = i === app.focus ? 0 : -1;
      if (ghost) {
        letter.textContent = "+";
        own.textContent = other.textContent = "";
        cell.setAttribute("aria-label", "make the word longer");
        return;
      }
      const state = found.states[i + 1], read = found.read[i];
      cell.style.setProperty("--letter", colour(app.word[i]));
      letter.textContent = names[app.word[i]];
      own.textContent = state;
      other.textContent = read === null ? "?" : read;
      other.classList.toggle("wrong", read !== state);
      cell.setAttribute("aria-label", `letter ${i + 1}: ${names[app.word[i]]}, machine ${state}, network ${read === null ? "not readable" : read}`);
    });
  }

  // -- the range --------------------------------------------------------------------------------

  const kinds = () => program().stages.map(({ layer }) => layer);
  const negative = (layer) => layer.kind === "delta" ? layer.symbols.some((symbol) => symbol.steps.some(([kind]) => kind === "swap" || kind === "reflect"))
    : layer.kind === "diagonal" && layer.decay.some((row) => row.some((a) => a < 0));

  function showRange() {
    const low = draw.number(app.low);
    get("low").value = app.low;
    get("low").setAttribute("aria-valuetext", `from ${low} to 1`);
    get("low-value").textContent = low;
    const right = found.read.map((state, t) => state === found.states[t + 1]);
    const first = right.indexOf(false), total = app.word.length;
    get("range-line").textContent = total === 0 ? "" : first < 0
      ? `With [${low}, 1] the network reads all ${plural(total, "letter")} right.`
      : `With [${low}, 1] the network is right for ${plural(first, "letter")} of ${total}, then ${found.read[first] === null ? "nothing can be read" : "it is wrong"}.`;
    get("range-line").classList.toggle("lost", first >= 0);
    get("range-note").textContent = rangeNote();
  }

  function rangeNote() {
    if (kinds().every((layer) => layer.kind === "dense")) return "A dense layer has any matrices: there is no range to close.";
    const unsigned = app.entry.families[0];
    if (!kinds().some(negative)) return "No transition of this program has an eigenvalue below 0: closing the range changes nothing.";
    const other = app.entry.programs.find((one) => one.method === "diagonal" && !one.program.stages.some(({ layer }) => negative(layer)));
    if (unsigned.answer === "can" && other) return "This program uses reflections, but this machine does not need them: method diagonal has a program in [0, 1].";
    if (unsigned.answer === "cannot") return `No program with eigenvalues in [0, 1] tracks this machine: ${unsigned.reason}.`;
    return "";
  }

  function setLow(low) {
    app.low = Math.round(low * 100) / 100;
    compute();
    remember();
  }

  let closing = 0;
  function closeSlowly() {
    stopClosing();
    pause();
    if (app.word.length < 16 && app.word.length) setWord(Array.from({ length: 16 }, (_, i) => app.word[i % app.word.length]));
    app.t = app.word.length;
    const jump = still.matches ? 0.1 : 0.01;
    setLow(-1);
    closing = setInterval(() => {
      if (app.low >= 0) stopClosing();
      else setLow(Math.min(0, app.low + jump));
    }, still.matches ? 500 : 55);
    get("close-slowly").textContent = "Stop";
  }
  function stopClosing() {
    clearInterval(closing);
    closing = 0;
    get("close-slowly").textContent = "Close it slowly";
  }

  // -- one moment -------------------------------------------------------------------------------

  const ease = (p) => p < 0.5 ? 2 * p * p : 1 - 2 * (1 - p) ** 2;

  function render() {
    const { t, progress } = app, last = t - 1, stages = views.layers;
    const from = t ? found.states[last] : null, to = found.states[t];
    views.machine.update(from, to, app.word[last], progress);
    const moves = t ? found.closed.layers.map((own) => own.frames[last]) : [];
    let left = progress * moves.reduce((sum, list) => sum + list.length, 0);
    stages.forEach((view, i) => {
      const own = found.closed.layers[i], { layer } = view;
      if (!t) {
        view.state(runtime.start(layer), [], -1);
        view.line.textContent = "Before the first letter.";
        view.list.replaceChildren();
        view.card.classList.remove("busy");
        view.spectrum([], everyEigen(view), app.low);
        view.spectrumCaption.textContent = "Eigenvalues of A for every symbol.";
        view.stateCaption.textContent = stateCaption(layer);
        return;
      }
      const list = moves[i], at = Math.max(0, Math.min(list.length, left));
      left -= list.length;
      const active = progress < 1 && at > 0 && at < list.length + (left > 0 ? 0 : 1) && left <= 0 ? Math.min(list.length - 1, Math.floor(at)) : -1;
      const whole = Math.floor(at), before = whole === 0 ? own.before[last] : list[whole - 1].h;
      const p = ease(at - whole), after = whole < list.length ? list[whole].h : before;
      view.state(before.map((row, r) => row.map((x, c) => draw.mix(x, after[r][c], p))), list, active);
      view.card.classList.toggle("busy", active >= 0);
      const symbol = own.symbols[last];
      if (symbol === null) {
        view.line.textContent = "A layer in front shows what cannot be: no input.";
        view.list.replaceChildren();
        view.spectrum([], everyEigen(view), app.low);
        view.spectrumCaption.textContent = "Eigenvalues of A for every symbol.";
        return;
      }
      view.line.replaceChildren("Reads ", make("b", {}, runtime.symbolName(layer, symbol)), ", then holds ", make("b", {}, progress < 1 && left > -list.length && at < list.length ? "…" : layer.labels[own.held[last]]), ".");
      if (view.list.dataset.of !== `${last} ${app.low} ${list.length}` || view.list.children.length !== list.length) {
        view.list.replaceChildren(...list.map((move) => make("li", {}, moveName(layer, move))));
        view.list.dataset.of = `${last} ${app.low} ${list.length}`;
      }
      [...view.list.children].forEach((item, j) => item.classList.toggle("on", j === active));
      const values = eigen(view, symbol);
      view.spectrum(values, everyEigen(view), app.low);
      view.spectrumCaption.textContent = `Eigenvalues of A(${runtime.symbolName(layer, symbol)}): ${listed(values)}. Rings: other symbols.`;
      view.stateCaption.textContent = stateCaption(layer);
    });
    showAnswer();
    [...get("strip").children].forEach((cell, i) => {
      cell.classList.toggle("here", i === last);
      cell.classList.toggle("later", i >= t || (i === last && progress < 1));
    });
    get("position").value = t;
    get("read").textContent = `${t} of ${app.word.length}`;
    showGist();
    get("to-start").disabled = get("back").disabled = t === 0;
    get("step").disabled = t >= app.word.length && progress === 1;
    const right = found.read.map((state, i) => state === found.states[i + 1]);
    if (progress === 1) views.signal(found.signal, right, t, app.word.map((letter) => names[letter]));
  }

  function stateCaption(layer) {
    const { rows, columns } = draw.shown(layer);
    if (rows.length === 1) return "The state is one number.";
    const what = columns.length === 1 ? "The state vector" : `${columns.length} state vectors`;
    if (rows.length > 3) return `${what}, a bar for each row. A ring is a number too small to draw.`;
    return `${what} in ${rows.length === 2 ? "the plane" : "space"}. ${rows.length === 2 ? "Dashed: mirrors." : "Discs: mirrors."}`;
  }

  function listed(values) {
    const counts = new Map();
    const clean = (x) => draw.number(Math.abs(x) < 1e-9 ? 0 : Number(x.toFixed(3)));
    for (const [re, im] of values) {
      const size = clean(Math.abs(im));
      const turned = `${clean(re) === "0" ? "" : `${clean(re)} `}±${clean(re) === "0" ? "" : " "}${size === "1" ? "" : size}i`;
      const shown = size === "0" ? clean(re) : turned;
      counts.set(shown, (counts.get(shown) || 0) + (size === "0" ? 1 : 0.5));
    }
    const parts = [...counts].map(([shown, count]) => count > 1 ? `${shown} (×${count})` : shown);
    return parts.length > 8 ? `${parts.slice(0, 8).join(", ")}, …` : parts.join(", ");
  }

  function saying(state) {
    const said = says[state];
    if (typeof said === "boolean") return `state ${state}, which ${said ? "accepts" : "rejects"}`;
    return said === state ? `state ${state}` : `state ${state}, which says ${said === "" ? "nothing" : said}`;
  }

  // The moment in a few signs, beside the buttons.
  function showGist() {
    const { t } = app, read = t ? found.read[t - 1] : 0, moving = app.progress < 1, right = read === found.states[t];
    const answer = moving ? "…" : read === null ? "?" : String(read);
    get("gist").replaceChildren(
      t ? make("b", { class: "mono" }, names[app.word[t - 1]]) : "start", " → ", make("b", {}, String(moving ? found.states[t - 1] : found.states[t])), ", network ",
      make("b", { class: moving ? "" : right ? "right" : "wrong" }, moving ? answer : `${answer} ${right ? "✓" : "✗"}`));
  }

  function showAnswer() {
    const { t } = app, state = found.states[t], read = t ? found.read[t - 1] : 0;
    const box = get("answer"), moving = app.progress < 1;
    get("machine-line").textContent = `The machine is in ${saying(moving && t ? found.states[t - 1] : state)}.`;
    if (moving) box.textContent = "The network is reading …";
    else if (read === null) box.textContent = `The network's answer cannot be read; the machine is in ${saying(state)}.`;
    else box.textContent = read === state ? `The network says ${saying(state)}. The machine agrees.` : `The network says ${saying(read)}. That is wrong: the machine is in state ${state}.`;
    box.classList.toggle("wrong", !moving && read !== state);
  }

  // -- time -------------------------------------------------------------------------------------

  function speak() {
    const { t } = app, read = t ? found.read[t - 1] : 0;
    get("said").textContent = t ? `Letter ${t}, ${names[app.word[t - 1]]}: machine state ${found.states[t]}, network ${read === null ? "not readable" : `state ${read}`}.` : "At the start.";
  }

  function goTo(t) {
    pause();
    app.t = Math.max(0, Math.min(app.word.length, t));
    app.progress = 1;
    render();
    keepInSight();
    speak();
    remember();
  }

  function keepInSight() {
    const strip = get("strip"), cell = strip.children[Math.max(0, app.t - 1)];
    if (!cell) return;
    const gap = cell.offsetLeft - strip.offsetLeft;
    if (gap < strip.scrollLeft || gap + 90 > strip.scrollLeft + strip.clientWidth) strip.scrollLeft = gap - strip.clientWidth / 2;
  }

  // Reads the next letter, moving; `after` is called when it is read.
  function advance(after) {
    cancelAnimationFrame(frame);
    if (app.progress < 1) app.progress = 1;
    if (app.t >= app.word.length) { render(); return after(false); }
    app.t++;
    keepInSight();
    const span = Number(get("speed").value);
    if (still.matches) {
      app.progress = 1;
      render();
      frame = 0;
      return after(true);
    }
    app.progress = 0;
    let begun = null;
    const tick = (now) => {
      begun ??= now;
      app.progress = Math.min(1, (now - begun) / span);
      render();
      if (app.progress < 1) frame = requestAnimationFrame(tick);
      else after(true);
    };
    frame = requestAnimationFrame(tick);
  }

  function step() {
    if (playing) pause();
    advance(() => { speak(); remember(); });
  }

  let rest = 0;
  function play() {
    if (playing) return pause();
    if (!app.word.length) return;
    if (app.t >= app.word.length) app.t = 0;
    playing = true;
    showPlaying();
    const next = (read) => {
      if (!playing) return;
      if (!read || app.t >= app.word.length) { pause(); speak(); return remember(); }
      rest = setTimeout(() => advance(next), still.matches ? Number(get("speed").value) : Number(get("speed").value) / 6);
    };
    advance(next);
  }

  function pause() {
    cancelAnimationFrame(frame);
    clearTimeout(rest);
    const was = playing || app.progress < 1;
    playing = false;
    app.progress = 1;
    showPlaying();
    if (was && found) render();
  }

  function showPlaying() {
    get("play").setAttribute("aria-pressed", String(playing));
    get("play-name").textContent = playing ? "Pause" : "Play";
  }

  // -- the address: what is shown can be shared -------------------------------------------------

  let remembered = "";
  function remember() {
    const parts = new URLSearchParams({ m: app.entry.text, w: spell(app.word), t: app.t, k: current().method });
    if (app.alphabet) parts.set("a", app.alphabet);
    if (app.low !== -1) parts.set("low", app.low);
    remembered = `#${parts}`;
    history.replaceState(null, "", remembered);
  }

  function recall() {
    if (location.hash.length < 2 || location.hash === remembered) return false;
    const parts = new URLSearchParams(location.hash.slice(1));
    if (!parts.has("m")) return false;
    const number = (key, least, most) => {
      const value = parts.has(key) ? Number(parts.get(key)) : NaN;
      return Number.isFinite(value) ? Math.max(least, Math.min(most, value)) : undefined;
    };
    const then = { method: parts.get("k"), low: number("low", -1, 0) ?? -1, t: number("t", 0, LONGEST) };
    if (then.t !== undefined) then.t = Math.floor(then.t);
    if (parts.has("w")) then.word = parts.get("w");
    choose(parts.get("m"), parts.get("a") || "", then);
    return true;
  }

  // -- what a person does -----------------------------------------------------------------------

  function listen() {
    const on = (id, kind, act) => get(id).addEventListener(kind, act);
    on("ask", "submit", (event) => {
      event.preventDefault();
      choose(get("machine").value, get("alphabet").value.trim()).then(rememberSafely);
    });
    on("gallery", "change", () => { if (get("gallery").value) choose(get("gallery").value).then(rememberSafely); });
    on("word", "input", typed);
    on("word", "change", () => { get("word").value = spell(app.word); note(""); remember(); });
    on("to-start", "click", () => goTo(0));
    on("back", "click", () => goTo(app.t - 1));
    on("step", "click", step);
    on("play", "click", play);
    on("position", "input", () => goTo(Number(get("position").value)));
    on("random", "click", () => {
      const length = Math.max(8, app.word.length);
      setWord(Array.from({ length }, () => Math.floor(Math.random() * names.length)), 1);
      remember();
    });
    on("longer", "click", () => { setWord([...app.word, ...app.word]); remember(); });
    on("low", "input", () => { stopClosing(); setLow(Number(get("low").value)); });
    on("close-slowly", "click", () => closing ? stopClosing() : closeSlowly());
    on("reopen", "click", () => { stopClosing(); setLow(-1); });
    on("save", "click", save);
    on("open-parity", "click", () => {
      choose("parity").then(() => { rememberSafely(); get("name").scrollIntoView({ behavior: still.matches ? "auto" : "smooth" }); });
    });
    get("methods").addEventListener("change", remember);
    listenToStrip();
    addEventListener("hashchange", recall);
    addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, summary, a, #strip")) return;
      const button = event.target.closest("button");
      if (event.key === "ArrowRight") step();
      else if (event.key === "ArrowLeft") goTo(app.t - 1);
      else if (event.key === "Home") goTo(0);
      else if (event.key === " " && !button) play();
      else return;
      event.preventDefault();
    });
  }

  function rememberSafely() { if (app.entry) remember(); }

  function listenToStrip() {
    const strip = get("strip");
    const cellAt = (event) => {
      const cell = document.elementFromPoint(event.clientX, event.clientY)?.closest(".cell");
      return cell && strip.contains(cell) ? [...strip.children].indexOf(cell) : -1;
    };
    let last = -1;
    strip.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      last = cellAt(event);
      if (last >= 0) paint(last, app.brush);
    });
    strip.addEventListener("pointermove", (event) => {
      if (!(event.buttons & 1) || event.pointerType === "touch" || last < 0) return;
      const at = cellAt(event);
      if (at >= 0 && at !== last) { last = at; paint(at, app.brush); }
    });
    addEventListener("pointerup", () => { if (last >= 0) { last = -1; remember(); } });
    strip.addEventListener("click", (event) => {
      const cell = event.target.closest(".cell");
      const touched = event.pointerType === "touch" || event.detail === 0; // a finger or a key
      if (cell && touched) { paint([...strip.children].indexOf(cell), app.brush); remember(); }
    });
    strip.addEventListener("focusin", (event) => {
      const at = [...strip.children].indexOf(event.target.closest(".cell"));
      if (at < 0) return;
      strip.children[app.focus] && (strip.children[app.focus].tabIndex = -1);
      app.focus = at;
      strip.children[at].tabIndex = 0;
    });
    strip.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const at = app.focus, move = (i) => strip.children[Math.max(0, Math.min(strip.children.length - 1, i))].focus();
      const letter = names.indexOf(event.key);
      if (event.key === "ArrowRight") move(at + 1);
      else if (event.key === "ArrowLeft") move(at - 1);
      else if (event.key === "Home") move(0);
      else if (event.key === "End") move(strip.children.length - 1);
      else if ((event.key === "Delete" || event.key === "Backspace") && at < app.word.length) {
        setWord(app.word.filter((_, i) => i !== at));
        move(event.key === "Delete" ? at : at - 1);
        remember();
      } else if (letter >= 0) { paint(at, letter); move(at + 1); remember(); } else return;
      event.preventDefault();
    });
  }

  function save() {
    const link = make("a", { download: `program-${current().method}.json` });
    link.href = URL.createObjectURL(new Blob([JSON.stringify(program())], { type: "application/json" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function showTrained() {
    const { runs, note: said } = data.trained;
    get("trained-note").textContent = said || "";
    get("trained").replaceChildren(...runs.map((run) => {
      const id = `trained-${runs.indexOf(run)}`;
      const box = draw.svg("svg", { role: "img", "aria-labelledby": id });
      draw.trained(box, run, data.trained.exact);
      const [low, high] = run.eigen_range;
      const right = run.accuracy.map(({ lengths, value }) => `${(100 * value).toFixed(1)} % right at ${lengths}`).join(", ");
      return make("figure", {}, make("h3", {}, `${run.model}, trained with [${draw.number(low)}, ${high}]`), box,
        make("figcaption", { id }, `${right}. Lowest eigenvalue ${draw.number(run.lowest)} on reading 1, where the exact one is −1.`));
    }));
  }

  function begin() {
    const select = get("gallery"), kinds = [...new Set(data.gallery.map((one) => one.kind))];
    select.append(make("option", { value: "" }, "– your own –"));
    for (const kind of kinds) {
      const options = data.gallery.filter((one) => one.kind === kind).map((one) => make("option", { value: one.text }, one.title === one.text ? one.title : `${one.title} · ${one.text}`));
      select.append(make("optgroup", { label: kind }, ...options));
    }
    get("origin").textContent = data.secret === null
      ? `This page holds ${entries.size} machines; statetrack playground compiles any other.`
      : "New expressions are compiled by the server you started here.";
    showTrained();
    listen();
    const first = data.entries[0];
    show(first, "", {});
    recall();
  }

  // Beside a long network the machine stays in sight: the left column sticks, by its lower end
  // where it is taller than the window.
  function keepBeside() {
    const left = document.querySelector(".left"), bar = get("dock").offsetHeight;
    const fit = () => left.style.setProperty("--top", `${Math.min(bar + 12, innerHeight - left.offsetHeight - 4)}px`);
    new ResizeObserver(fit).observe(left);
    addEventListener("resize", fit);
  }

  begin();
  keepBeside();
})();
