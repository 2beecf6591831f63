"use strict";
// Everything a test said reaches this page as text (textContent), never as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const BAD = new Set(["CRASH", "STALL", "LEAK", "FLAKY", "FAILED", "UNFINISHED"]);
const WORDS = { UNFINISHED: "NO END" };
const TALLIES = {
  CRASH: ["crash", "crashes"], STALL: ["stall", "stalls"], LEAK: ["leak", "leaks"], FLAKY: ["flaky", "flaky"],
  UNFINISHED: ["did not finish", "did not finish"], xfailed: ["failed as expected", "failed as expected"],
};
const CHUNK = 100;
const PRINTED = 60;
const find = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// numbers for people

function sizeText(size) {
  if (size === null || size === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0, value = size;
  while (Math.abs(value) >= 1024 && step < units.length - 1) { value /= 1024; step += 1; }
  return `${step ? value.toFixed(1) : +value.toPrecision(4)} ${units[step]}`;
}

function timeText(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1e-3) return `${+(seconds * 1e6).toPrecision(3)} µs`;
  if (seconds < 0.0995) return `${+(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 99.5) return `${+seconds.toPrecision(3)} s`;
  const minutes = Math.round(seconds / 60);
  const hours = `${Math.floor(minutes / 60)} h`;
  return minutes < 60 ? `${minutes} min` : minutes % 60 ? `${hours} ${minutes % 60} min` : hours;
}

const numberText = (value) => (Math.abs(value) >= 100 ? Math.round(value) : +value.toPrecision(3)).toLocaleString("en");

function amountText(value, unit) {
  if (value === null || value === undefined) return "";
  return unit === "bytes" ? sizeText(value) : unit === "seconds" ? timeText(value) : numberText(value);
}

const unitOf = (name) => data.signals[name]?.unit ?? "count";
const slopeText = (entry, slope) => `${amountText(slope, unitOf(entry.signal))} per ${entry.per}`;
const momentText = (seconds) => new Date(seconds * 1000).toLocaleString();

// one test, opened

function factChips(test) {
  const detail = test.detail ?? {};
  const origin = data.origins[test.origin];
  const facts = {
    ...detail.facts, duration: timeText(test.duration), "peak memory": sizeText(test.peak),
    laps: test.laps ? numberText(test.laps) : "", backend: detail.backend, seed: detail.seed, pid: detail.pid,
    host: origin.host, worker: origin.worker === "main" ? "" : origin.worker,
    run: data.runs.length > 1 ? data.runs[test.run].source : "",
    ...Object.fromEntries(Object.entries(detail.phases ?? {}).map(([phase, seconds]) => [phase, timeText(seconds)])),
  };
  if (facts.class === facts.signal) delete facts.class;
  if (facts.limit === "0") delete facts.limit;
  const shown = Object.entries(facts).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return make("ul", { class: "chips", "aria-label": "Facts" },
    ...shown.map(([name, value]) => make("li", {}, make("b", {}, name.replaceAll("_", " ")), String(value))));
}

function command(text) {
  const button = make("button", { type: "button" }, "Copy");
  const shown = make("pre", { tabindex: "0" }, text);
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text, shown)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return make("div", { class: "command" }, shown, button);
}

async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(shown);
    return document.execCommand("copy");
  }
}

function stages(names, died) {
  const last = names.length - 1;
  return make("ol", { class: "stages" },
    ...names.map((name, number) => make("li", died && number === last ? { class: "died" } : {}, name)));
}

function signalTable(test) {
  const { columns, judged, still } = test.course;
  const rows = Object.entries(columns).map(([name, values]) => {
    const known = values.filter((value) => value !== null);
    const entry = judged.find((candidate) => candidate.signal === name);
    const text = (value) => amountText(value, unitOf(name));
    const limits = entry ? [entry.slope_limit ? slopeText(entry, entry.slope_limit) : "", text(entry.most)] : [];
    const cells = [
      known[0], known.at(-1), known.reduce((low, value) => Math.min(low, value)), known.reduce((high, value) => Math.max(high, value)),
    ].map((value) => make("td", { class: "number" }, text(value)));
    return make("tr", {}, make("th", { scope: "row" }, data.signals[name].title), ...cells,
      make("td", { class: "number" }, entry?.slope ? slopeText(entry, entry.slope) : ""),
      make("td", { class: "number" }, limits.filter(Boolean).join(", ")),
      make("td", { class: entry?.state === "leak" ? "LEAK" : "" },
        entry ? entry.state + (entry.reason ? `: ${entry.reason}` : "") : ""));
  });
  const head = ["signal", "first", "last", "lowest", "highest", "slope", "limit", "judged"];
  const table = make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((name, number) =>
      make("th", { scope: "col", class: number && number < 7 ? "number" : null }, name)))),
    make("tbody", {}, ...rows));
  const unmoved = Object.entries(still).map(([name, value]) =>
    `${data.signals[name].title} ${amountText(value, unitOf(name))}`);
  return make("details", {}, make("summary", {}, "The numbers"), make("div", { class: "scroll", tabindex: "0" }, table),
    unmoved.length ? make("p", { class: "quiet" }, `Never moved: ${unmoved.join(", ")}.`) : null);
}

const drawn = new WeakMap();
const nearby = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) drawn.get(entry.target)?.();
}, { rootMargin: "300px" });

function chart(test) {
  const { course, before } = test;
  const place = make("div", {
    class: "chart", role: "img",
    "aria-label": `Charts of ${Object.keys(course.columns).map((name) => data.signals[name].title).join(", ")} by lap`,
    style: "min-height: 20rem",
  });
  let axis = course.lap.at(-1) > course.lap[0] ? "lap" : "seconds";
  const draw = (more = {}) => {
    place.style.minHeight = "";
    charts.draw(place, { course, before: before?.course, signals: data.signals, axis, slopeText, ...more });
  };
  drawn.set(place, draw);
  nearby.observe(place);
  const buttons = [["lap", "by lap"], ["seconds", "by time"]].map(([name, text]) => {
    const button = make("button", { type: "button", "aria-pressed": String(axis === name) }, text);
    button.addEventListener("click", () => {
      axis = name;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      draw();
    });
    return button;
  });
  const counted = `${numberText(course.samples)} samples${before?.course ? "; thin and dotted: the baseline" : ""}`;
  return [make("div", { class: "axis", role: "group", "aria-label": "Chart axis" }, ...buttons,
    make("span", { class: "quiet" }, `${counted}. Drag to zoom, double-click to zoom out.`)), place, signalTable(test)];
}

function change(now, then) {
  if (!now || !then) return make("td", {}, "");
  const percent = (100 * (now - then)) / then;
  const look = Math.abs(percent) < 10 ? "quiet" : percent > 0 ? "worse" : "better";
  return make("td", { class: `number ${look}` }, `${percent > 0 ? "+" : ""}${percent.toFixed(percent < 100 ? 1 : 0)} %`);
}

function beforeTable(test) {
  const { before } = test;
  const [lapThen, lapNow] = before.lap_time;
  const rows = [
    ["duration", test.duration, before.duration, timeText], ["peak memory", test.peak, before.peak, sizeText],
    ["time per lap", lapNow, lapThen, timeText],
  ].filter(([, now, then]) => now || then);
  for (const entry of test.course?.judged ?? []) {
    const then = before.course?.judged.find((judged) => judged.signal === entry.signal)?.slope ?? 0;
    const text = (slope) => slopeText(entry, slope ?? 0);
    rows.push([`${data.signals[entry.signal].title}, growth`, entry.slope, then, text]);
  }
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...["", "now", "baseline", "change"].map((name, number) =>
      make("th", { scope: "col", class: number ? "number" : null }, name)))),
    make("tbody", {},
      make("tr", {}, make("th", { scope: "row" }, "outcome"), make("td", { class: "number" }, test.status),
        make("td", { class: "number" }, before.status), make("td")),
      ...rows.map(([name, now, then, text]) => make("tr", {}, make("th", { scope: "row" }, name),
        make("td", { class: "number" }, text(now)), make("td", { class: "number" }, text(then)), change(now, then))))));
}

const titled = (title, ...content) => [make("h3", {}, title), ...content];

function body(test) {
  const detail = test.detail ?? {};
  const sections = (detail.sections ?? []).filter(([title]) => !(title === "Stages" && detail.stages));
  return make("div", { class: "body" },
    factChips(test),
    ...(detail.reproduce ? titled("Reproduce", command(detail.reproduce)) : []),
    ...(detail.stages ? titled("Stages", stages(detail.stages, BAD.has(test.status))) : []),
    ...(test.course ? titled("Charts", ...chart(test)) : []),
    ...(test.before ? titled("Compared with the baseline", beforeTable(test)) : []),
    ...sections.flatMap(([title, text]) => titled(title || "What happened", make("pre", { tabindex: "0" }, text))),
    ...(detail.report ? titled("Failure", make("pre", { tabindex: "0" }, detail.report)) : []),
    ...(detail.leftovers ? titled("Processes left running", make("pre", {}, detail.leftovers.join("\n"))) : []),
    ...(detail.earlier ? titled("Earlier attempts", make("ol", {}, ...detail.earlier.map((attempt) =>
      make("li", {}, `${attempt.status}: ${attempt.headline} (${timeText(attempt.duration)})`)))) : []),
    ...(detail.output ?? []).map(([title, text]) =>
      make("details", {}, make("summary", {}, title), make("pre", { tabindex: "0" }, text))));
}

// the list: rows exist only near what is seen

const opened = new Set();
const scattered = data.origins.length > 1 || data.runs.length > 1;

function originText(test) {
  const { host, worker } = data.origins[test.origin];
  return [data.runs.length > 1 ? `run ${test.run + 1}` : "", host, worker === "main" ? "" : worker].filter(Boolean).join(" · ");
}

function row(test, position, total) {
  const [path, ...rest] = test.id.split("::");
  const name = make("span", { class: "name mono" },
    rest.length ? make("span", { class: "path" }, `${path}::`) : null, rest.length ? rest.join("::") : path,
    scattered ? make("span", { class: "origin" }, originText(test)) : null,
    test.headline ? make("span", { class: "headline" }, test.headline) : null);
  const details = make("details", { class: `test ${test.status}` },
    make("summary", {}, make("span", { class: "word" }, WORDS[test.status] ?? test.status), name,
      make("span", { class: "figure laps" }, test.laps ? numberText(test.laps) : ""),
      make("span", { class: "figure" }, sizeText(test.peak)),
      make("span", { class: "figure" }, timeText(test.duration))));
  const fill = () => { if (details.children.length === 1) details.append(body(test)); };
  details.addEventListener("toggle", () => {
    if (details.open) { fill(); opened.add(test); } else opened.delete(test);
  });
  if (opened.has(test)) { details.open = true; fill(); }
  return make("div", { role: "listitem", "aria-setsize": total, "aria-posinset": position }, details);
}

class List {
  constructor(place) {
    this.place = place;
    this.chunks = new Map();
    this.watch = new IntersectionObserver((entries) => {
      for (const entry of entries) entry.isIntersecting ? this.fill(entry.target) : this.empty(entry.target);
    }, { rootMargin: "1200px" });
  }

  show(tests) {
    this.watch.disconnect();
    this.chunks.clear();
    this.place.querySelectorAll(".js-plotly-plot").forEach((chart) => Plotly.purge(chart));
    const chunks = [];
    for (let start = 0; start < tests.length; start += CHUNK) {
      const chunk = make("div", { role: "presentation" });
      const part = tests.slice(start, start + CHUNK);
      chunk.style.minHeight = `${part.length * 2.4}rem`;
      this.chunks.set(chunk, { part, start, total: tests.length });
      chunks.push(chunk);
    }
    this.place.replaceChildren(...chunks);
    for (const chunk of chunks) this.watch.observe(chunk);
    if (chunks.length) this.fill(chunks[0]);
  }

  fill(chunk) {
    const { part, start, total } = this.chunks.get(chunk);
    if (chunk.childElementCount) return;
    chunk.append(...part.map((test, number) => row(test, start + number + 1, total)));
    chunk.style.minHeight = "";
  }

  empty(chunk) {
    if (!chunk.childElementCount || chunk.querySelector("[open]") || chunk.contains(document.activeElement)) return;
    chunk.style.minHeight = `${chunk.offsetHeight}px`;
    chunk.replaceChildren();
  }

  chunkOf(test) {
    return [...this.chunks].find(([, { part }]) => part.includes(test))?.[0];
  }

  reveal(test) {
    const chunk = this.chunkOf(test);
    if (!chunk) return;
    opened.add(test);
    chunk.replaceChildren();
    this.fill(chunk);
    const summary = chunk.children[this.chunks.get(chunk).part.indexOf(test)].querySelector("summary");
    summary.focus({ preventScroll: true });
    summary.scrollIntoView({ block: "start" });
  }
}

// searching and sorting

const ORDERS = {
  "Worst first": null,
  Name: (test) => test.id,
  Laps: (test) => -(test.laps ?? 0),
  "Peak memory": (test) => -(test.peak ?? 0),
  Duration: (test) => -(test.duration ?? 0),
};
const state = { order: "Worst first", reversed: false, statuses: new Set(), words: [] };
const haystacks = data.tests.map((test) =>
  `${test.id} ${test.status} ${test.headline ?? ""} ${originText(test)}`.toLowerCase());

function wanted() {
  const kept = data.tests.filter((test, number) =>
    (!state.statuses.size || state.statuses.has(test.status)) && state.words.every((word) => haystacks[number].includes(word)));
  const key = ORDERS[state.order];
  if (key) {
    const keyed = kept.map((test) => [key(test), test]);
    keyed.sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0));
    kept.splice(0, kept.length, ...keyed.map(([, test]) => test));
  }
  return state.reversed ? kept.reverse() : kept;
}

const list = new List(find("list"));

function refresh() {
  const tests = wanted();
  list.show(tests);
  const all = `${data.tests.length.toLocaleString("en")} ${data.tests.length === 1 ? "test" : "tests"}`;
  find("count").textContent = tests.length === data.tests.length ? all : `${tests.length.toLocaleString("en")} of ${all}`;
}

function toggles(place, names, dress, click) {
  const buttons = names.map((name) => {
    const button = make("button", { type: "button", "aria-pressed": "false" }, ...dress(name));
    button.addEventListener("click", () => { click(name); mark(); refresh(); });
    return [name, button];
  });
  const mark = () => buttons.forEach(([name, button]) => button.setAttribute("aria-pressed", String(place.isOn(name))));
  place.element.append(...buttons.map(([, button]) => button));
  mark();
  return new Map(buttons);
}

function buildTally() {
  const counts = new Map();
  for (const test of data.tests) counts.set(test.status, (counts.get(test.status) ?? 0) + 1);
  const present = data.statuses.filter((status) => counts.has(status));
  const buttons = toggles({ element: find("tally"), isOn: (name) => state.statuses.has(name) }, present,
    (name) => [make("b", {}, counts.get(name).toLocaleString("en")),
      TALLIES[name]?.[counts.get(name) === 1 ? 0 : 1] ?? name.toLowerCase()],
    (name) => (state.statuses.has(name) ? state.statuses.delete(name) : state.statuses.add(name)));
  for (const [name, button] of buttons) button.classList.add(name);
}

function buildSorting() {
  toggles({ element: find("sorting"), isOn: (name) => state.order === name }, Object.keys(ORDERS), (name) => [name],
    (name) => { state.reversed = state.order === name && !state.reversed; state.order = name; });
}

// runs and the baseline

function runCard(run, number, heading) {
  const facts = {
    host: run.host, platform: run.platform, versions: run.versions, seed: run.seed,
    began: run.began ? momentText(run.began) : "", "told of": timeText(run.ended - run.began),
    tests: run.tests.toLocaleString("en"), workers: run.places.length > 1 ? run.places.join(", ") : "",
    command: run.arguments.length ? `pytest ${run.arguments.join(" ")}` : "", log: run.source,
  };
  const rows = Object.entries(facts).filter(([, value]) => value !== "" && value !== null);
  return make("div", { class: "card" }, make("h3", {}, heading ?? `Run ${number + 1}`), make("div", { class: "scroll" },
    make("table", {}, make("tbody", {}, ...rows.map(([name, value]) =>
      make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, String(value))))))));
}

function buildRuns() {
  const several = data.runs.length > 1;
  find("runs").append(make("h2", {}, several ? "Runs" : "Run"),
    ...data.runs.map((run, number) => runCard(run, number, several ? null : run.host || "This run")));
  const [first] = data.runs;
  const hosts = new Set(data.origins.map(({ host }) => host));
  find("subtitle").textContent = several
    ? `${data.runs.length} runs on ${hosts.size} ${hosts.size === 1 ? "host" : "hosts"}`
    : [first.host, first.began ? momentText(first.began) : "", first.platform].filter(Boolean).join(" · ");
  for (const run of data.runs) {
    const troubles = [];
    if (run.damaged) troubles.push(`${run.damaged} damaged ${run.damaged === 1 ? "line was" : "lines were"} left out`);
    if (run.headless) troubles.push("its beginning is missing");
    const unfinished = run.statuses.UNFINISHED;
    if (unfinished) troubles.push(`${unfinished} ${unfinished === 1 ? "test" : "tests"} did not finish: the run was cut short`);
    if (troubles.length) find("notices").append(make("p", { class: "notice" }, `${run.source}: ${troubles.join("; ")}.`));
  }
}

function testLinks(ids) {
  return make("ul", {}, ...ids.slice(0, 200).map((id) => {
    const link = make("a", { href: `#${encodeURIComponent(id)}` }, id);
    return make("li", { class: "mono" }, data.tests.some((test) => test.id === id) ? link : id);
  }), ids.length > 200 ? make("li", {}, `and ${ids.length - 200} more`) : null);
}

function changeTable(changes) {
  const head = ["test", "what", "now", "baseline", "change"];
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((name, number) =>
      make("th", { scope: "col", class: number > 1 ? "number" : null }, name)))),
    make("tbody", {}, ...changes.map(({ id, what, unit, now, then }) => make("tr", {},
      make("td", { class: "mono" }, make("a", { href: `#${encodeURIComponent(id)}` }, id)), make("td", {}, what),
      make("td", { class: "number" }, amountText(now, unit)), make("td", { class: "number" }, amountText(then, unit)),
      change(now, then))))));
}

function buildComparison() {
  const compared = data.baseline;
  if (!compared) return;
  const groups = [
    ["Fails now, did not in the baseline", compared.worse], ["Failed in the baseline, does not now", compared.better],
    ["New", compared.new], ["Gone", compared.vanished],
  ].filter(([, ids]) => ids.length);
  find("comparison").append(make("h2", {}, "Compared with the baseline"),
    ...(groups.length ? groups.map(([title, ids], number) => make("details", number < 2 ? { open: "" } : {},
      make("summary", {}, `${title} (${ids.length.toLocaleString("en")})`), testLinks(ids)))
      : [make("p", {}, "The same tests pass and fail.")]),
    ...(compared.changes.length ? [make("details", { open: "" }, make("summary", {}, "Largest changes"),
      changeTable(compared.changes))] : []),
    make("details", {}, make("summary", {}, "The baseline"), ...compared.runs.map((run, number) =>
      runCard(run, number, run.host || "Baseline"))));
  find("comparison").hidden = false;
}

// starting, links, keyboard, printing, colours

function followLink() {
  const id = decodeURIComponent(location.hash.slice(1));
  const test = data.tests.find((candidate) => candidate.id === id);
  if (test) {
    if (!list.chunkOf(test)) { state.words = []; state.statuses.clear(); find("search").value = ""; refresh(); }
    list.reveal(test);
  }
}

function redraw(more) {
  for (const place of document.querySelectorAll(".chart")) if (more || place.childElementCount) drawn.get(place)(more);
}

function preparePrint() {
  let left = PRINTED;
  for (const [chunk, { part }] of list.chunks) {
    const failed = part.filter((test) => BAD.has(test.status)).slice(0, Math.max(left, 0));
    left -= failed.length;
    if (!failed.length) continue;
    failed.forEach((test) => opened.add(test));
    chunk.replaceChildren();
    list.fill(chunk);
  }
  document.querySelectorAll(".test[open] .body details").forEach((details) => { details.open = true; });
  redraw({ paper: true, width: 680 });
}

buildTally();
buildSorting();
buildRuns();
buildComparison();
find("list").before(make("div", { class: "columns", "aria-hidden": "true" },
  ...["outcome", "test", "laps", "peak memory", "duration"].map((name) => make("span", {}, name))));
refresh();
followLink();
find("search").addEventListener("input", (event) => {
  state.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  refresh();
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    find("search").focus();
  }
});
addEventListener("hashchange", followLink);
addEventListener("beforeprint", preparePrint);
addEventListener("afterprint", () => redraw({}));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
