"use strict";
// The page around the tests: the list, searching and sorting, runs, links and print.

const CHUNK = 100;
const PRINTED = 60;
const MOST_DIFFERING = 200;

// the list: rows exist only near the visible part

const opened = new Set();
const scattered = data.origins.length > 1 || data.runs.length > 1;

function originText(test) {
  const { host, worker } = data.origins[test.origin];
  const run = data.runs.length > 1 ? `run ${test.run + 1}` : "";
  return [run, host, worker === "main" ? "" : worker].filter(Boolean).join(" · ");
}

function showAddress(test) {
  history.replaceState(null, "", `#${encodeURIComponent(addressOf(test))}`);
}

function row(test, position, total) {
  const [path, ...rest] = test.id.split("::");
  const status = statuses[test.status];
  const name = make("span", { class: "name mono" },
    rest.length ? make("span", { class: "path" }, `${path}::`) : null, rest.length ? rest.join("::") : path,
    scattered ? make("span", { class: "origin" }, originText(test)) : null,
    test.headline ? make("span", { class: "headline" }, test.headline) : null,
    test.where ? make("span", { class: "where" }, test.where) : null);
  const details = make("details", { class: `test ${status.name}`, style: toneOf(status) },
    make("summary", {}, make("span", { class: "word" }, status.label), name,
      make("span", { class: "figure laps" }, test.laps ? numberText(test.laps) : ""),
      make("span", { class: "figure" }, sizeText(test.peak)),
      make("span", { class: "figure" }, timeText(test.duration))));
  const fill = () => { if (details.children.length === 1) details.append(body(test)); };
  details.addEventListener("toggle", () => {
    if (details.open) { fill(); opened.add(test); showAddress(test); } else opened.delete(test);
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
  `${test.id} ${test.status} ${test.headline ?? ""} ${test.where ?? ""} ${originText(test)}`.toLowerCase());

function wanted() {
  const kept = data.tests.filter((test, number) =>
    (!state.statuses.size || state.statuses.has(test.status)) &&
    state.words.every((word) => haystacks[number].includes(word)));
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
  const some = `${tests.length.toLocaleString("en")} of ${all}`;
  find("count").textContent = tests.length === data.tests.length ? all : some;
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
  const present = data.statuses.map((status) => status.name).filter((name) => counts.has(name));
  const buttons = toggles({ element: find("tally"), isOn: (name) => state.statuses.has(name) }, present,
    (name) => [make("b", {}, counts.get(name).toLocaleString("en")),
      counts.get(name) === 1 ? statuses[name].one : statuses[name].many],
    (name) => (state.statuses.has(name) ? state.statuses.delete(name) : state.statuses.add(name)));
  for (const [name, button] of buttons) {
    button.classList.add(name);
    button.setAttribute("style", toneOf(statuses[name]));
  }
}

function buildSorting() {
  toggles({ element: find("sorting"), isOn: (name) => state.order === name }, Object.keys(ORDERS), (name) => [name],
    (name) => { state.reversed = state.order === name && !state.reversed; state.order = name; });
}

// runs

// One column a run: what differs between machines stands side by side.
function runTable() {
  const facts = data.runs.map((run) => ({
    host: run.host, platform: run.platform, ...Object.fromEntries(run.versions), seed: run.seed,
    began: run.began ? momentText(run.began) : "", duration: timeText(run.ended - run.began),
    tests: run.tests.toLocaleString("en"), workers: run.places.length > 1 ? run.places.join(", ") : "",
    command: run.arguments.length ? `pytest ${run.arguments.join(" ")}` : "", log: run.source,
  }));
  const own = ["seed", "began", "duration", "command", "log", "host"];  // of every run
  const names = [...new Set(facts.flatMap((one) => Object.keys(one)))];
  const last = ["seed", "began", "duration", "tests", "workers", "command", "log"];
  names.sort((one, other) => last.indexOf(one) - last.indexOf(other));
  const rows = names.map((name) => [name, facts.map((one) => String(one[name] ?? ""))]);
  const differs = (name, values) => new Set(values).size > 1 && !own.includes(name);
  return tableOf(["", ...(data.runs.length > 1 ? data.runs.map((_, number) => `run ${number + 1}`) : [""])],
    () => false, rows.filter(([, values]) => values.some(Boolean)).map(([name, values]) =>
      make("tr", differs(name, values) ? { class: "differs" } : {}, make("th", { scope: "row" }, name),
        ...values.map((value) => make("td", {}, value || "\u2013")))));
}

// The tests that did not end in the same way everywhere.
function differences() {
  const ends = new Map();
  for (const test of data.tests) {
    if (!ends.has(test.id)) ends.set(test.id, data.runs.map(() => []));
    ends.get(test.id)[test.run].push(test);
  }
  const differing = [...ends].filter(([, perRun]) => new Set(perRun.flat().map((test) => test.status)).size > 1);
  if (!differing.length) return [];
  const cell = (tests) => make("td", {}, ...tests.flatMap((test, number) => [number ? ", " : "", make("a", {
    href: `#${encodeURIComponent(addressOf(test))}`, class: "word", style: toneOf(statuses[test.status]),
  }, statuses[test.status].label)]));
  return [make("h2", {}, "Not the same everywhere"), make("div", { class: "card" },
    tableOf(["test", ...data.runs.map((run, number) => `run ${number + 1}: ${run.host}`)], () => false,
      differing.slice(0, MOST_DIFFERING).map(([id, perRun]) =>
        make("tr", {}, make("td", { class: "mono" }, id), ...perRun.map(cell)))),
    differing.length > MOST_DIFFERING
      ? make("p", { class: "quiet" }, `... and ${differing.length - MOST_DIFFERING} more`) : null)];
}

function buildRuns() {
  const several = data.runs.length > 1;
  find("runs").append(...(several ? differences() : []), make("h2", {}, several ? "Runs" : "Run"),
    make("div", { class: "card" }, runTable()));
  const [first] = data.runs;
  const hosts = new Set(data.origins.map(({ host }) => host));
  find("subtitle").textContent = several
    ? `${data.runs.length} runs on ${hosts.size} ${hosts.size === 1 ? "host" : "hosts"}`
    : [first.host, first.began ? momentText(first.began) : "", first.platform].filter(Boolean).join(" · ");
  for (const run of data.runs) {
    const troubles = [];
    if (run.damaged) troubles.push(`${run.damaged} damaged ${run.damaged === 1 ? "line was" : "lines were"} left out`);
    if (run.headless) troubles.push("its beginning is missing");
    const tests = run.unfinished === 1 ? "1 test" : `${run.unfinished} tests`;
    if (run.unfinished) troubles.push(`${tests} did not finish: the run was cut short`);
    const notice = `${run.source}: ${troubles.join("; ")}.`;
    if (troubles.length) find("notices").append(make("p", { class: "notice" }, notice));
  }
}

// starting, links, keyboard, printing, colours

function followLink() {
  const id = decodeURIComponent(location.hash.slice(1));
  const test = data.tests.find((candidate) => addressOf(candidate) === id || candidate.id === id);
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
    const failed = part.filter((test) => isBad(test)).slice(0, Math.max(left, 0));
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
find("list").before(make("div", { class: "list-head", "aria-hidden": "true" },
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
