"use strict";
const LIST = JSON.parse(document.getElementById("list").textContent);
const BEGINNING = "0".repeat(64), STORE = `wardround review ${LIST.list} `;
const WORDS = ["very unsure", "unsure", "neither", "sure", "very sure"];
const main = document.getElementById("main");
let reader = null, lines = [], began = 0, spent = 0, kept = true;

// SHA-256 (FIPS 180-4) of a text as UTF-8: a page that is opened as a file has no other in every browser
function sha256(text) {
  const prime = [], fraction = (root) => ((root - Math.floor(root)) * 2 ** 32) | 0;
  for (let n = 2; prime.length < 64; n++) if (prime.every((p) => n % p)) prime.push(n);
  const constant = prime.map((p) => fraction(Math.cbrt(p))), state = prime.slice(0, 8).map((p) => fraction(Math.sqrt(p)));
  const bytes = new TextEncoder().encode(text), size = ((bytes.length + 8 >> 6) + 1) << 6, block = new DataView(new ArrayBuffer(size));
  bytes.forEach((byte, place) => block.setUint8(place, byte));
  block.setUint8(bytes.length, 128);
  block.setUint32(size - 8, Math.floor(bytes.length / 2 ** 29));
  block.setUint32(size - 4, bytes.length * 8);
  const turn = (word, by) => (word >>> by) | (word << (32 - by)), w = new Int32Array(64);
  for (let start = 0; start < size; start += 64) {
    for (let t = 0; t < 64; t++) {
      if (t < 16) { w[t] = block.getInt32(start + 4 * t); continue; }
      const a = w[t - 15], b = w[t - 2];
      w[t] = w[t - 16] + w[t - 7] + (turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)) + (turn(b, 17) ^ turn(b, 19) ^ (b >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let t = 0; t < 64; t++) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + constant[t] + w[t]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((word, place) => { state[place] = (state[place] + word) | 0; });
  }
  return state.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}

// the log: as `wardround log verify` reads it
function add(event, detail) {
  const before = lines.length ? JSON.parse(lines[lines.length - 1]).hash : BEGINNING;
  const entry = { number: lines.length, time: new Date().toISOString(), event, detail, before };
  lines.push(JSON.stringify({ ...entry, hash: sha256(JSON.stringify(entry)) }));
  try { localStorage.setItem(STORE + reader.name, JSON.stringify(lines)); kept = true; } catch { kept = false; }
}
function stored(name) {
  try {
    const saved = JSON.parse(localStorage.getItem(STORE + name) || "[]");
    let before = BEGINNING;
    saved.forEach((line, number) => {
      const { hash, ...entry } = JSON.parse(line);
      if (entry.number !== number || entry.before !== before || hash !== sha256(JSON.stringify(entry))) throw 0;
      before = hash;
    });
    return saved;
  } catch { return null; }
}
const decided = () => lines.filter((line) => JSON.parse(line).event === "case decided").length;
const finished = () => lines.some((line) => JSON.parse(line).event === "reading finished");

// elements
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) name in element ? (element[name] = value) : element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}
function show(...children) {
  main.replaceChildren(...children.filter((child) => child !== null));
  window.scrollTo(0, 0);
  const done = reader ? decided() : 0, all = reader ? reader.turns.length : 1;
  document.querySelector("#bar span").style.width = width(done / all);
  main.focus({ preventScroll: true });
}
const say = (text) => { document.getElementById("progress").textContent = text; };
const percent = (share) => `${Math.round(100 * share)} %`, width = (share) => `${100 * share}%`;
const warning = () => kept ? null : make("p", { className: "caution" }, "This browser keeps nothing. Do not close the page before you have saved your decisions.");

function welcome() {
  reader = null; lines = []; say("");
  const choices = make("div", { className: "choices" });
  LIST.readers.forEach((one, place) => choices.append(make("label", {}, make("input", { type: "radio", name: "reader", value: String(place) }), one.name)));
  const form = make("form", {}, make("fieldset", {}, make("legend", {}, "Who are you?"), choices), make("div", { className: "buttons" }, make("button", {}, "Begin, or go on")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const chosen = form.querySelector(":checked");
    if (chosen) enter(LIST.readers[Number(chosen.value)]);
  });
  const count = LIST.readers[0].turns.length, ways = LIST.conditions.map((condition) => condition.words).join("; ");
  show(
    make("h1", {}, "Reading list"),
    make("p", {}, `${count} case${count === 1 ? "" : "s"}, one after another. ${LIST.conditions.length > 1 ? `Some are shown ${ways}.` : `All are shown ${ways}.`} You see each case once and cannot go back. For each, say what you think is so, how sure you are, and whether you would ask somebody else.`),
    make("p", {}, "The time for each case is measured. Press Pause when you are interrupted. You may close the page and go on later in this browser."),
    make("p", {}, "When you are done, save the file with your decisions and give it to the study nurse. Nothing leaves this computer by itself. What is right is not in this page."),
    form,
    make("p", { className: "hint" }, "List ", make("code", {}, LIST.list.slice(0, 12)), ". Keys: digits choose an answer, ", make("kbd", {}, "Tab"), " moves on, ", make("kbd", {}, "Enter"), " saves."),
  );
}

function enter(chosen) {
  const saved = stored(chosen.name);
  if (saved === null) {
    show(make("h1", {}, "Stop"), make("p", { className: "caution" }, "What this browser kept of your decisions was changed, or is damaged. Tell the study nurse before you go on."));
    return;
  }
  reader = chosen; lines = saved;
  if (!lines.length) add("reading begun", { format: LIST.format, list: LIST.list, reader: reader.name, cases: reader.turns.length });
  finished() ? end() : next();
}

function next() {
  const place = decided();
  if (place === reader.turns.length) { if (!finished()) add("reading finished", { decided: place }); end(); return; }
  const [code, condition] = reader.turns[place];
  say(`Case ${place + 1} of ${reader.turns.length}`);
  spent = 0; began = performance.now();
  draw(code, LIST.conditions[condition].name, LIST.conditions[condition].words);
}

function draw(code, condition, words) {
  const item = LIST.cases[code];
  const rows = item.columns.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)));
  const seen = make("div", {},
    item.image ? make("img", { className: "picture", src: `data:image/png;base64,${item.image}`, alt: `Picture of case ${code}` }) : null,
    rows.length ? make("table", {}, make("tbody", {}, ...rows)) : null);
  const aside = make("div", {}, condition === "alone" ? null : model(item, condition === "reasons"), question(code));
  show(
    make("h1", {}, `Case ${code}`),
    make("p", { className: "condition" }, words.charAt(0).toUpperCase() + words.slice(1)),
    warning(),
    make("div", { className: "case wide" }, seen, aside),
  );
}

function model(item, reasons) {
  const shown = LIST.answers.length === 2 ? [1] : LIST.answers.map((_, place) => place);
  const about = (place) => LIST.question ? `${LIST.question} ${LIST.answers[place]}` : LIST.answers[place];
  const meters = shown.map((place) => {
    const fill = make("span"); fill.style.width = width(item.scores[place]);
    return make("div", { className: "meter" }, make("span", {}, `Score for ${about(place)}`), make("b", {}, percent(item.scores[place])), make("div", { className: "track" }, fill));
  });
  const box = make("section", { className: "model" }, make("h2", {}, "The model"), make("p", {}, "It calls this ", make("b", {}, about(item.predicted)), "."), ...meters);
  if (reasons) {
    const most = Math.max(...item.reasons.map(([, value]) => Math.abs(value)), 1e-9);
    const values = Object.fromEntries(item.columns);
    const list = item.reasons.map(([name, value]) => {
      const fill = make("span"); fill.style.width = width(Math.abs(value) / most);
      return make("li", { className: value > 0 ? "raises" : "lowers" }, make("span", {}, name in values ? `${name}: ${values[name]}` : name), make("span", {}, value > 0 ? "▲ raises" : "▼ lowers"), make("div", { className: "track" }, fill));
    });
    if (list.length) box.append(make("h2", {}, "Why: what moved its score most"), make("ul", { className: "reasons" }, ...list));
    if (item.heat) box.append(make("h2", {}, `Where: what raises its score for ${about(LIST.answers.length === 2 ? 1 : item.predicted)}`), make("img", { className: "picture", src: `data:image/png;base64,${item.heat}`, alt: "The picture with orange where the score is raised most" }));
  }
  return box;
}

function question(code) {
  const radio = (name, value, text, key) => make("label", {}, make("input", { type: "radio", name, value: String(value), required: true }), make("span", {}, text), key ? make("kbd", { className: "keys" }, key) : null);
  const answers = make("fieldset", {}, make("legend", {}, LIST.question ? `${LIST.question}: your answer` : "Your answer"),
    make("div", { className: "choices" }, ...LIST.answers.map((answer, place) => radio("answer", place, answer, place < 9 ? String(place + 1) : ""))));
  const sure = make("fieldset", {}, make("legend", {}, "How sure are you?"),
    make("div", { className: "choices" }, ...WORDS.map((word, place) => radio("confidence", place + 1, word, ""))));
  const refer = make("fieldset", {}, make("legend", {}, "Would you ask somebody else before you act?"),
    make("div", { className: "choices" }, make("label", {}, make("input", { type: "checkbox", name: "refer" }), make("span", {}, "I would refer this case"))));
  const pause = make("button", { type: "button", className: "plain" }, "Pause");
  const form = make("form", {}, answers, sure, refer, make("div", { className: "buttons" }, make("button", {}, "Save and go on"), pause));
  pause.addEventListener("click", rest);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = new FormData(form);
    add("case decided", { case: code, answer: Number(given.get("answer")), confidence: Number(given.get("confidence")), refer: given.has("refer"), milliseconds: Math.round(elapsed()) });
    next();
  });
  return form;
}

// time stands still while the page is hidden or paused
const elapsed = () => spent + (began ? performance.now() - began : 0);
function stop() { spent = elapsed(); began = 0; }
function rest() {
  stop();
  const held = [...main.childNodes];
  const on = make("button", {}, "Go on");
  on.addEventListener("click", () => { show(...held); began = performance.now(); });
  show(make("h1", {}, "Pause"), make("p", {}, "The case is hidden, and its time stands still."), make("div", { className: "buttons" }, on, saving("Save what there is", "plain")));
}
document.addEventListener("visibilitychange", () => {
  if (!main.querySelector("[name=answer]")) return;
  if (document.hidden) stop(); else if (!began) began = performance.now();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || !/^[1-9]$/.test(event.key)) return;
  const choice = main.querySelectorAll("[name=answer]")[Number(event.key) - 1];
  if (choice) { choice.checked = true; choice.focus(); }
});

function saving(text, className = "") {
  const button = make("button", { type: "button", className }, text);
  button.addEventListener("click", () => {
    const link = make("a", { href: `data:application/x-ndjson;charset=utf-8,${encodeURIComponent(lines.join("\n") + "\n")}`, download: `decisions-${reader.name.replace(/[^A-Za-z0-9]+/g, "-")}.jsonl` });
    document.body.append(link); link.click(); link.remove();
  });
  return button;
}
function end() {
  say(`${decided()} of ${reader.turns.length} decided`);
  const head = JSON.parse(lines[lines.length - 1]).hash;
  show(
    make("h1", {}, "Thank you"),
    warning(),
    make("p", {}, "All cases are decided. Save the file, and give it to the study nurse, together with this number, which shows any change of the file:"),
    make("p", {}, make("code", { id: "head" }, head)),
    make("div", { className: "buttons" }, saving("Save my decisions")),
  );
}
document.title = `Reading list: ${LIST.title}`;
document.getElementById("title").textContent = LIST.title;
welcome();
