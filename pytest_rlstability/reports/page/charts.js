"use strict";
// The figure of a test: a panel with an axis of its own for each signal, those that leak first, above one another.
// Plotly is kept as text until the first chart is drawn, so that a page of 10,000 tests opens quickly.

const charts = (() => {
  const LIGHT = {
    ink: "#1b2330", quiet: "#5b6675", line: "#dde2e9", card: "#ffffff", shade: "rgba(90,110,140,.13)",
    leak: "#c2182b", limit: "#7b2fbf",
    series: "#1f5fd0",
  };
  const DARK = {
    ink: "#e6eaf1", quiet: "#9aa6b6", line: "#2c3542", card: "#181e28", shade: "rgba(150,175,210,.14)",
    leak: "#ff7b85", limit: "#cf9bff",
    series: "#7cb0ff",
  };
  const ORDER = ["bytes", "count", "seconds"];
  const MOST_PANELS = 16;
  const LEAK_HEIGHT = 210, HEIGHT = 110, GAP = 40, TOP = 40, BOTTOM = 46;
  const NARROW = 560;

  const SCALES = {
    bytes: [[1, "B"], [1024, "KiB"], [1024 ** 2, "MiB"], [1024 ** 3, "GiB"]],
    seconds: [[1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"]],
    count: [[1, ""]],
  };

  function scaleFor(unit, values) {
    const most = values.reduce((top, value) => Math.max(top, Math.abs(value ?? 0)), 0);
    const fitting = SCALES[unit].filter(([size]) => most >= size * 1.5);
    const [size, name] = fitting.at(-1) ?? SCALES[unit][0];
    return { size, name, apply: (series) => series.map((value) => (value === null ? null : value / size)) };
  }

  function load() {
    if (!window.Plotly) {
      const script = document.createElement("script");
      script.textContent = document.getElementById("plotly").textContent;
      document.head.append(script);
    }
    return window.Plotly;
  }

  // One signal a panel: a leak of kilobytes beside gigabytes would be a flat line on their axis.
  function panels({ course, signals, names }) {
    const entryOf = (name) => course.judged.find((entry) => entry.signal === name);
    const weight = (name) => {
      const entry = entryOf(name);
      const rank = name === course.main ? 0 : entry?.leaks ? 1 : entry ? 2 : 3;
      return [rank, ORDER.indexOf(signals[name]?.unit ?? "count")];
    };
    const first = (one, other) => one[0] - other[0] || one[1] - other[1];
    return [...names].sort((one, other) => first(weight(one), weight(other))).slice(0, MOST_PANELS).map((name) => ({
      name, title: signals[name]?.title ?? name, unit: signals[name]?.unit ?? "count",
      height: entryOf(name)?.leaks ? LEAK_HEIGHT : HEIGHT,
    }));
  }

  // Plotly interprets some HTML in its texts; names that a test chose must be shown as they are.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  function along(course, axis) {
    if (axis === "lap") return { values: course.lap, title: "lap" };
    const scale = scaleFor("seconds", course.seconds);
    return { values: scale.apply(course.seconds), title: `elapsed (${scale.name})` };
  }

  function line(x, y, yaxis, name, look, more = {}) {
    return { type: "scatter", mode: "lines", x, y, yaxis, name, line: look, connectgaps: true, ...more };
  }

  // How one signal is drawn: *plot* holds its axes, scale, colours and label.
  function signalTraces(name, plot) {
    const { course, x, scale } = plot;
    const values = scale.apply(course.columns[name]);
    const traces = (isThinned(course) ? band : plainLine)(x.values, values, plot);
    const entry = course.judged.find((judged) => judged.signal === name);
    return entry ? [...traces, ...promises(entry, plot)] : traces;
  }

  function plainLine(x, y, { yaxis, label, theme }) {
    const few = x.length <= 60 ? { mode: "lines+markers", marker: { size: 4 } } : {};
    return [line(x, y, yaxis, label, { color: theme.series, width: 1.8 }, few)];
  }

  const isThinned = (course) => course.samples > 1.5 * course.lap.length;

  // Two rows hold the lowest and the highest of a group of samples: the space between them is filled.
  function band(x, y, { yaxis, label, theme }) {
    const pairs = x.map((_, row) => row).filter((row) => row % 2 === 0 && row + 1 < x.length && y[row] !== null);
    const middle = pairs.map((row) => (x[row] + x[row + 1]) / 2);
    const edge = (pick) => pairs.map((row) => pick(y[row], y[row + 1]));
    const look = { color: theme.series, width: 1.2 };
    return [
      line(middle, edge(Math.min), yaxis, `${label}, lowest`, look),
      line(middle, edge(Math.max), yaxis, label, look, { fill: "tonexty", fillcolor: `${theme.series}38` }),
    ];
  }

  // The fitted slope and the promised limits of one signal, from where measuring began.
  function promises(entry, { course, x, scale, yaxis, theme, label, slopeText }) {
    const clock = entry.per === "minute" ? course.seconds.map((second) => second / 60) : course.lap;
    const rows = course.lap.map((_, row) => row).filter((row) => row >= entry.row);
    const straight = (start, slope) => rows.map((row) => start + slope * (clock[row] - clock[entry.row]));
    const drawn = [];
    const add = (xs, ys, name, look) => drawn.push(line(xs, scale.apply(ys), yaxis, `${label}: ${name}`, look));
    const measured = rows.map((row) => x.values[row]);
    const limit = { color: theme.limit, width: 1.5, dash: "dot" };
    if (entry.leaks && entry.slope && entry.start !== null) {
      const look = { color: theme.leak, width: 2.5, dash: "6px,5px" };
      add(measured, straight(entry.start, entry.slope), slopeText(entry, entry.slope), look);
    }
    if (entry.slope_limit && entry.begin !== null) {
      add(measured, straight(entry.begin, entry.slope_limit), `limit ${slopeText(entry, entry.slope_limit)}`, limit);
    }
    if (entry.most !== null) {
      add([x.values[0], x.values.at(-1)], [entry.most, entry.most], `limit ${entry.most}`, limit);
    }
    return drawn;
  }

  // The axis shows the samples. A limit far above them, or a slow first lap, would flatten the rest.
  function axisRange(panel, course, scale) {
    const known = (values) => values.filter((value) => value !== null);
    const all = known(course.columns[panel.name]);
    const warm = course.lap.findIndex((lap) => lap >= course.warmup);
    const rest = known(course.columns[panel.name].slice(Math.max(warm, 1)));
    const top = (values) => values.reduce((most, value) => Math.max(most, value), -Infinity);
    const bottom = (values) => values.reduce((least, value) => Math.min(least, value), Infinity);
    const most = course.judged.find((entry) => entry.signal === panel.name)?.most ?? -Infinity;
    const seen = panel.unit === "seconds" && rest.length && top(all) > 3 * top(rest) ? rest : all;
    if (seen === all && most < 3 * top(all)) return undefined;
    const room = 0.08 * (top(seen) - bottom(seen) || 1);
    return scale.apply([panel.unit === "seconds" ? 0 : bottom(seen) - room, top(seen) + room]);
  }

  function figure(options) {
    const { course, signals, axis, theme, slopeText, narrow } = options;
    const shown = panels(options), gap = narrow ? GAP + 16 : GAP;
    const x = along(course, axis);
    const traces = [], annotations = [], axes = {};
    const inner = shown.reduce((sum, panel) => sum + panel.height, 0) + gap * (shown.length - 1);
    let top = inner;
    for (const [number, panel] of shown.entries()) {
      const suffix = number ? String(number + 1) : "";
      const scale = scaleFor(panel.unit, course.columns[panel.name]);
      axes[`yaxis${suffix}`] = {
        domain: [Math.max(0, (top - panel.height) / inner), top / inner], anchor: "x", automargin: true,
        title: { text: scale.name, standoff: 4 }, gridcolor: theme.line, zeroline: false,
        nticks: panel.height > HEIGHT ? 7 : 4, range: axisRange(panel, course, scale),
      };
      annotations.push({
        text: heading(panel, course, slopeText, narrow), xref: "paper", yref: "paper", x: 0, y: top / inner,
        xanchor: "left", yanchor: "bottom", align: "left", showarrow: false, font: { size: 13, color: theme.ink },
      });
      const label = plain(signals[panel.name]?.title ?? panel.name);
      traces.push(...signalTraces(panel.name, { ...options, x, scale, label, yaxis: `y${suffix}` }));
      top -= panel.height + gap;
    }
    const lowest = shown.length > 1 ? `y${shown.length}` : "y";
    const shapes = warmUp(course, x.values, theme);
    return { traces, layout: { ...look(theme, x, lowest, inner, narrow), ...axes, annotations, shapes } };
  }

  function look(theme, x, lowest, inner, narrow) {
    return {
      height: inner + TOP + BOTTOM, margin: { l: narrow ? 44 : 56, r: 12, t: TOP, b: BOTTOM }, showlegend: false,
      paper_bgcolor: theme.card, plot_bgcolor: theme.card,
      font: { family: "system-ui, sans-serif", size: 12, color: theme.ink },
      xaxis: {
        title: { text: x.title, standoff: 6 }, anchor: lowest, gridcolor: theme.line, zeroline: false,
        linecolor: theme.line,
      },
      hovermode: "x unified", hoversubplots: "axis", dragmode: "zoom",
      hoverlabel: { bgcolor: theme.card, bordercolor: theme.line, font: { color: theme.ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.quiet, activecolor: theme.ink },
    };
  }

  // The heading of a panel says what its lines are.
  function heading(panel, course, slopeText, narrow) {
    const entry = course.judged.find((judged) => judged.signal === panel.name);
    const notes = entry ? [
      entry.slope ? `${slopeText(entry, entry.slope)}, ${entry.state}` : "",
      entry.slope_limit ? `limit ${slopeText(entry, entry.slope_limit)}` : "",
      entry.most !== null ? `limit ${entry.most}` : "",
    ].filter(Boolean) : [];
    const title = `<b>${plain(panel.title)}</b>`;
    return notes.length ? `${title}${narrow ? "<br>" : "   "}${notes.map(plain).join(narrow ? ", " : "   ")}` : title;
  }

  function warmUp(course, x, theme) {
    const end = course.lap.findLastIndex((lap) => lap <= course.warmup);
    if (!course.warmup || end < 1) return [];
    return [{
      type: "rect", xref: "x", yref: "paper", x0: x[0], x1: x[end], y0: 0, y1: 1, fillcolor: theme.shade,
      line: { width: 0 }, layer: "below", name: "warm-up",
      label: { text: "warm-up", textposition: "top left", font: { size: 11, color: theme.quiet } },
    }];
  }

  function draw(place, options) {
    const dark = !options.paper && matchMedia("(prefers-color-scheme: dark)").matches;
    const narrow = (options.width ?? place.clientWidth) < NARROW;
    const { traces, layout } = figure({ ...options, narrow, theme: dark ? DARK : LIGHT });
    if (options.width) layout.width = options.width;
    load().react(place, traces, layout, {
      responsive: !options.width, displaylogo: false, displayModeBar: !narrow,
      modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
    });
  }

  return { draw };
})();
