"use strict";
// The page's own script. Recorded text reaches the page through textContent and attributes alone.
(() => {
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const data = JSON.parse(one("#data").textContent);
  const rows = data.rows;
  const byId = new Map(rows.map((row, place) => [row.id, place]));
  const narrow = matchMedia("(max-width: 900px)");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  /** Create an element. Strings become text nodes; no markup is ever parsed. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "class") element.className = value;
      else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  function decoded(text) {
    const bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place += 1) bytes[place] = text.charCodeAt(place);
    return bytes;
  }
  async function unpack(id) {
    const text = one(`#${id}`).textContent;
    const bytes = Uint8Array.fromBase64?.(text) ?? decoded(atob(text));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }
  function once(start) {
    let promise = null;
    return () => (promise ??= start());
  }
  const archive = once(async () => JSON.parse(await unpack("archive")));
  const metrics = once(async () => JSON.parse(await unpack("metrics")));
  const library = once(async () => {
    // Allowed by the hash in the content security policy.
    const script = make("script");
    script.textContent = await unpack("library");
    document.head.append(script);
    return window.Plotly;
  });

  // --- theme ------------------------------------------------------------------------------------

  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const stored = (() => { try { return localStorage.getItem("ragen-theme"); } catch { return null; } })();
  let theme = stored === "dark" || stored === "light" ? stored : null;
  function applyTheme() {
    root.dataset.theme = theme ?? (prefersDark.matches ? "dark" : "light");
    redraw();
  }
  function toggleTheme() {
    theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("ragen-theme", theme); } catch { /* a page from a file may have no storage */ }
    applyTheme();
  }

  // --- charts -----------------------------------------------------------------------------------

  const drawn = new Map();
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function color(tone) {
    if (tone === "muted") return css("--curve-muted");
    if (typeof tone === "string" && tone.startsWith("ramp")) {
      const [place, count] = tone.slice(4).split("/").map(Number);
      const share = count > 1 ? place / (count - 1) : 0.5;
      const dark = root.dataset.theme === "dark";
      const light = dark ? 82 - 42 * share : 72 - 46 * share;
      return `hsl(${205 + 50 * share}, ${60 - 5 * share}%, ${light}%)`;
    }
    return css(typeof tone === "number" ? `--c${tone % 7}` : `--${tone}`);
  }
  function faded(base, alpha) {
    if (base.startsWith("#")) {
      const [r, g, b] = [1, 3, 5].map((at) => parseInt(base.slice(at, at + 2), 16));
      return `rgba(${r},${g},${b},${alpha})`;
    }
    return base.replace("hsl(", "hsla(").replace(")", `, ${alpha})`);
  }

  function dressed(trace, layout) {
    const { tone, kind } = trace.meta;
    const base = color(tone);
    const format = layout.yaxis?.tickformat ? ".1%" : ".4~g";
    const look = { ...trace, meta: undefined };
    if (kind === "band") return { ...look, fill: "toself", fillcolor: faded(base, 0.16), line: { width: 0 }, hoverinfo: "skip", showlegend: false };
    if (kind === "faint") return { ...look, line: { color: faded(base, 0.28), width: 1 }, hoverinfo: "skip", showlegend: false };
    if (kind === "dash") return { ...look, line: { color: base, width: 1.2, dash: "dot" }, showlegend: false, hovertemplate: `%{y:${format}}` };
    if (kind === "bar") return { ...look, marker: { color: base, line: { width: 0 } }, hovertemplate: "%{y:.2f} s" };
    if (kind === "alarm") return { ...look, y: trace.y.map(() => ({ green: 0.34, amber: 0.67, red: 1 })[trace.name]), marker: { color: base, line: { width: 0 } }, hovertemplate: "%{text}", showlegend: false };
    const raw = trace.customdata && !Array.isArray(trace.customdata[0]);
    const ends = trace.customdata && !raw;
    const extra = raw ? ` <i>(%{customdata:${format}})</i>` : ends ? ` [%{customdata[0]:${format}}, %{customdata[1]:${format}}]` : "";
    return {
      ...look,
      line: { color: base, width: tone === "muted" ? 1.6 : 2, shape: "linear" },
      marker: { color: base, size: kind === "points" ? 6 : 4.5 },
      hovertemplate: `%{y:${format}}${extra}`,
    };
  }

  function plan(chart, strip) {
    const text = css("--text"), muted = css("--muted"), grid = css("--grid");
    const traces = chart.traces.map((trace) => dressed(trace, chart.layout));
    // A baseline's name stands at its line instead of in the legend; at the top above it, where no
    // curve passes, and the legend makes room.
    const baselines = chart.traces.filter((t) => t.meta.kind === "dash");
    const inside = (t) => t.y[0] > 0.5 && t.y[0] <= 0.9;
    const names = baselines.map((t) => ({
      xref: "paper", x: inside(t) ? 0.09 : 1, xanchor: inside(t) ? "left" : "right", y: t.y[0], yanchor: "bottom",
      text: t.name, showarrow: false, font: { size: 10.5, color: muted },
      bgcolor: faded(css("--surface"), 0.8), borderpad: 1,  // curves may pass under it
    }));
    const room = baselines.some((t) => t.y[0] > 0.9) ? 14 : 0;
    const legend = traces.filter((t) => t.showlegend !== false).length > 1 || chart.traces.some((t) => t.meta.kind === "band");
    const axis = { gridcolor: grid, zeroline: false, linecolor: grid, tickfont: { size: 11, color: muted }, automargin: true, exponentformat: "power", fixedrange: narrow.matches };
    const layout = {
      ...chart.layout,
      autosize: true,
      margin: strip ? { l: 8, r: 8, t: 4, b: 22 } : { l: 8, r: 10, t: (legend ? 30 : 12) + room, b: 26 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11.5, color: text },
      hovermode: strip ? "x" : "x unified",
      hoverlabel: { bgcolor: css("--surface"), bordercolor: css("--line-strong"), font: { color: text, size: 12 }, namelength: 34 },
      showlegend: legend && !strip,
      legend: { orientation: "h", x: 0, y: room ? 1.1 : 1.01, yanchor: "bottom", xanchor: "left", font: { size: 11, color: muted }, bgcolor: "rgba(0,0,0,0)", itemwidth: 30 },
      xaxis: { ...axis, showgrid: false, hoverformat: "d", ticks: "", spikecolor: css("--curve-muted"), spikethickness: 1, spikedash: "dot", unifiedhovertitle: { text: "iteration %{x}" }, ...chart.layout.xaxis },
      yaxis: { ...axis, nticks: 6, ...chart.layout.yaxis, title: { ...(chart.layout.yaxis?.title ?? {}), font: { size: 11, color: muted }, standoff: 6 } },
      shapes: (chart.layout.shapes ?? []).map((shape) => ({ ...shape, name: undefined, fillcolor: css("--warm"), line: { width: 0 } })),
      annotations: names,
      transition: { duration: 0 },
    };
    return [traces, layout];
  }

  // One chart at a time, so that the page answers between two.
  let queue = Promise.resolve();
  function draw(place) {
    queue = queue.then(async () => {
      await new Promise((ready) => setTimeout(ready));
      await drawNow(place);
    }).catch((error) => { place.replaceChildren(make("p", { class: "chart-empty" }, `This chart could not be drawn: ${error.message}`)); });
  }
  async function drawNow(place) {
    const chart = drawn.get(place);
    if (!chart) return;
    const plotly = await library();
    if (!plotly) { place.replaceChildren(make("p", { class: "chart-empty" }, "The chart library could not be loaded.")); return; }
    const [traces, layout] = plan(chart, place.classList.contains("strip"));
    place.replaceChildren();
    await plotly.newPlot(place, traces, layout, { displayModeBar: false, responsive: true, displaylogo: false, doubleClick: "reset", showTips: false });
    place.dataset.done = "1";
  }
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !entry.target.dataset.done && entry.target.clientWidth) {
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "200px" });

  function show(place, chart) {
    if (!chart) return;
    drawn.set(place, chart);
    delete place.dataset.done;
    watcher.unobserve(place);
    watcher.observe(place);
  }
  function redraw() {
    for (const [place, chart] of drawn) if (place.dataset.done) show(place, chart);
  }
  // Paper has another width: the charts are drawn again for it, in light colors.
  let screenTheme = null;
  addEventListener("beforeprint", () => {
    screenTheme = root.dataset.theme;
    root.dataset.theme = "light";
    root.classList.add("printing");
    if (!window.Plotly) return;
    for (const [place, chart] of drawn) {
      if (!place.clientWidth) continue;
      const [traces, layout] = plan(chart, place.classList.contains("strip"));
      window.Plotly.newPlot(place, traces, { ...layout, width: place.clientWidth, height: place.clientHeight }, { staticPlot: true });
      place.dataset.done = "1";
    }
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    root.dataset.theme = screenTheme;
    redraw();
  });
  function card(chart) {
    const place = make("div", { class: "chart", role: "img", "aria-label": `Chart: ${chart.title}. ${chart.text}` });
    show(place, chart);
    return make("figure", { class: "chart-card" }, make("h3", {}, chart.title), chart.text ? make("p", {}, chart.text) : null, place);
  }

  function setUpCharts() {
    for (const place of all("[data-groups]")) {
      for (const group of data.runs[place.dataset.groups].groups) {
        const warm = group.charts.some((chart) => chart.layout.shapes);
        place.append(make("h2", { class: "section" }, group.heading, warm ? make("span", { class: "aside" }, "shaded: warm start") : null), make("div", { class: "charts" }, group.charts.map(card)));
      }
    }
    for (const place of all("[data-chart]")) {
      const name = place.dataset.chart;
      if (name !== "metric") show(place, data.runs[place.dataset.run][name]);
    }
    for (const select of all("[data-metric]")) {
      const run = select.dataset.metric, names = data.runs[run].metrics;
      const prefixes = [...new Set(names.map((name) => name.split("/")[0]))];
      for (const prefix of prefixes) {
        select.append(make("optgroup", { label: prefix }, names.filter((n) => n.split("/")[0] === prefix).map((n) => make("option", {}, n))));
      }
      select.value = names.includes("train/explained_variance") ? "train/explained_variance" : names[0];
      const place = one(`[data-chart="metric"][data-run="${run}"]`);
      const draws = async () => {
        const traces = (await metrics())[run][select.value];
        show(place, { key: "metric", title: select.value, text: "", traces, layout: { yaxis: {}, xaxis: { range: [0, data.runs[run].end * 1.01] } } });
      };
      select.addEventListener("change", draws);
      // Unpacked only when it is looked at.
      const first = new IntersectionObserver((entries) => {
        if (entries.some((entry) => entry.isIntersecting)) { first.disconnect(); draws(); }
      }, { rootMargin: "200px" });
      first.observe(place);
    }
    one("#compared")?.append(...data.comparison.map(card));
    for (const details of all("details.more")) details.addEventListener("toggle", () => redraw());
  }

  // --- parts of the page ------------------------------------------------------------------------

  const tabs = all("nav a").map((link) => link.dataset.tab);
  let tab = "";
  function openTab(name) {
    if (!tabs.includes(name)) name = "overview";
    tab = name;
    for (const section of all(".tab")) section.hidden = section.id !== name;
    for (const link of all("nav a")) {
      if (link.dataset.tab === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.body.classList.toggle("browsing", name === "trajectories" && rows.length > 0);
  }
  function route() {
    const [, name, ...rest] = decodeURIComponent(location.hash).split("/");
    const id = rest.join("/");
    openTab(name || "overview");
    if (tab !== "trajectories" || !rows.length) return;
    if (id && byId.has(id)) openTrajectory(byId.get(id));
    else if (!narrow.matches) openTrajectory(current ?? shown[0]);
    else one(".browser").classList.remove("open");
  }
  function go(name) {
    location.hash = name === "trajectories" && current !== null && !narrow.matches ? address(current) : `#/${name}`;
  }
  for (const button of all("[data-show-run]")) {
    button.addEventListener("click", () => {
      for (const other of all("[data-show-run]")) other.setAttribute("aria-pressed", other.dataset.showRun === button.dataset.showRun);
      for (const article of all("article.run")) article.hidden = article.dataset.run !== button.dataset.showRun;
    });
  }

  // --- configuration ----------------------------------------------------------------------------

  for (const article of all("#configuration article")) {
    const search = one("[data-config-search]", article), changed = one("[data-config-changed]", article);
    if (!search) continue;
    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of all(".settings tbody tr", article)) {
        const text = row.textContent.toLowerCase();
        row.hidden = (changed?.checked && !row.classList.contains("differs")) || !words.every((word) => text.includes(word));
      }
    };
    search.addEventListener("input", filter);
    changed?.addEventListener("change", filter);
  }

  // --- list of trajectories ---------------------------------------------------------------------

  const list = one("#rows");
  let shown = rows.map((_, place) => place);
  let current = null;
  let wanted = null; // by the keyboard, which may be faster than the page
  let turn = 0;
  let haystack = null;
  let opened = null; // the archive, once it is unpacked
  const items = [];
  const outcome = (success) => make("span", { class: `mark ${success ? "good" : "bad"}`, title: success ? "solved" : "failed" }, success ? "✓" : "✗", make("span", { class: "hidden-text" }, success ? "solved" : "failed"));
  const signed = (value) => (value === null ? "–" : typeof value === "number" && value > 0 ? `+${value}` : String(value).replace("-", "−"));
  const address = (place) => `#/trajectories/${encodeURIComponent(rows[place].id)}`;
  const hasBoards = (row) => row.boards.some((number) => number !== null);
  const runName = (row) => (data.runs.length > 1 ? `${data.runs[row.run].name} · ` : "");

  function board(number, pictures, alt, kind) {
    if (number === null || number === undefined) return null;
    return make("img", { class: kind, src: pictures[number], alt, loading: "lazy", decoding: "async", draggable: "false" });
  }
  function listItem(place) {
    const row = rows[place];
    const details = [row.set !== "training" ? row.set : null, row.difficulty, `seed ${row.seed}`].filter(Boolean).join(" · ");
    return make("li", { role: "option", id: `row-${place}`, "aria-selected": "false", "data-place": place },
      make("span", { class: hasBoards(row) ? "thumb" : "", "aria-hidden": "true" }),
      make("div", {}, make("div", { class: "row-title" }, runName(row) + row.moment, row.set === "training" || row.temperature === null ? null : make("span", { class: "row-sub" }, ` T ${row.temperature}`)), make("div", { class: "row-sub" }, details)),
      make("div", { class: "row-end" }, make("div", {}, row.level && row.level !== "green" ? make("span", { class: `level level-${row.level}`, title: `alarm ${row.level}` }) : null, outcome(row.success), ` ${signed(row.return)}`), make("div", {}, `${row.turns} turn${row.turns === 1 ? "" : "s"}`)));
  }
  function setUpList() {
    if (!list) return;
    const fill = (selector, values) => {
      const select = one(selector);
      if (!select) return;
      select.append(make("option", { value: "" }, "all"), ...values.map(([value, label]) => make("option", { value }, label)));
      select.closest("label").hidden = values.length < 2;
      select.addEventListener("change", update);
    };
    const unique = (read) => [...new Set(rows.map(read))].filter((value) => value !== "" && value !== null);
    const named = (values) => values.map((value) => [value, value]);
    fill("#filter-run", data.runs.map((run, place) => [place, run.name]));
    fill("#filter-moment", named(unique((row) => row.moment)));
    fill("#filter-set", named(unique((row) => row.set)));
    fill("#filter-difficulty", named(rows.filter((r) => r.difficulty).sort((a, b) => a.hardness - b.hardness).map((r) => r.difficulty).filter((d, i, a) => a.indexOf(d) === i)));
    one("#filter-outcome").addEventListener("change", update);
    one("#sort").addEventListener("change", update);
    one("#direction").addEventListener("click", (event) => {
      const button = event.currentTarget, pressed = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", pressed);
      button.textContent = pressed ? "↓" : "↑";
      update();
    });
    let timer = 0;
    one("#search").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(update, 120); });
    items.push(...rows.map((_, place) => listItem(place)));
    list.addEventListener("click", (event) => {
      const item = event.target.closest("li");
      if (item) location.hash = address(Number(item.dataset.place));
    });
    const seen = new IntersectionObserver(async (entries) => {
      const { boards } = await archive();
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        const place = Number(entry.target.dataset.place), known = rows[place].boards.filter((n) => n !== null);
        if (known.length) one(".thumb", entry.target)?.replaceWith(board(known.at(-1), boards, "", "thumb"));
      }
    }, { root: list, rootMargin: "300px" });
    for (const item of items) seen.observe(item);
    update();
  }
  function text(detail) {
    return detail.turns.map((t) => `${t.summary}\n${t.thought}\n${t.response}\n${t.actions.join(" ")}`).join("\n") + (detail.error ?? "") + detail.reason;
  }
  async function update() {
    const words = one("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && !haystack) {
      const { details } = await archive();
      haystack = rows.map((row, place) => `${row.id} ${row.moment} ${row.set} ${row.env} ${row.seed} ${row.difficulty} ${row.stop} ${row.success ? "solved" : "failed"} ${text(details[place])}`.toLowerCase());
    }
    const value = (selector) => one(selector)?.value ?? "";
    const run = value("#filter-run"), moment = value("#filter-moment"), set = value("#filter-set"), difficulty = value("#filter-difficulty"), solved = value("#filter-outcome");
    shown = rows.map((_, place) => place).filter((place) => {
      const row = rows[place];
      return (run === "" || row.run === Number(run)) && (moment === "" || row.moment === moment) && (set === "" || row.set === set)
        && (difficulty === "" || row.difficulty === difficulty) && (solved === "" || row.success === (solved === "1"))
        && words.every((word) => haystack[place].includes(word));
    });
    const key = value("#sort"), level = { green: 0, amber: 1, red: 2 };
    const read = (row) => (key === "level" ? level[row.level] ?? -1 : key === "success" ? Number(row.success) : row[key] ?? -Infinity);
    if (key !== "order") shown.sort((a, b) => read(rows[a]) - read(rows[b]) || a - b);
    if (one("#direction").getAttribute("aria-pressed") === "true") shown.reverse();
    list.replaceChildren(...shown.map((place) => items[place]));
    const count = shown.length === rows.length ? `${rows.length}` : `${shown.length} of ${rows.length}`;
    const share = shown.filter((place) => rows[place].success).length;
    one("#found").textContent = shown.length ? `${count} trajectories, ${share} solved` : "Nothing matches: remove a word or a filter.";
    items[current]?.scrollIntoView({ block: "nearest" });
  }
  function step(by) {
    if (!shown.length) return;
    const at = shown.indexOf(wanted ?? current);
    const next = at < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, at + by));
    wanted = shown[next];
    location.hash = address(wanted);
  }

  // --- one trajectory ---------------------------------------------------------------------------

  const MODES = [
    ["plain", "none", null], ["advantage", "advantage", "diverging"], ["entropy", "entropy", "sequential"],
    ["log_prob", "log-prob", "surprise"], ["gap", "log-prob gap", "diverging"],
  ];
  const MEANING = { advantage: "advantage", entropy: "entropy (nats)", log_prob: "log-prob", gap: "trainer − sampler log-prob" };
  // Smallest values at which a color is full, so that a policy that is certain does not look alarming.
  const FULL = { advantage: 0.1, entropy: 0.5, log_prob: 0.7, gap: 0.01 };
  let mode = "entropy";
  const ARROWS = { up: "↑", down: "↓", left: "←", right: "→" };

  async function openTrajectory(place) {
    if (place === undefined || place === null) return;
    opened ??= await archive();
    const { boards, systems, details } = opened;
    items[current]?.setAttribute("aria-selected", "false");
    current = wanted = place;
    turn = 0;
    items[place].setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", `row-${place}`);
    items[place].scrollIntoView({ block: "nearest" });
    one(".browser").classList.add("open");
    const pane = one("#detail"), row = rows[place], detail = details[place];
    hideTip();
    pane.replaceChildren(...heading(row, detail, place), ...members(row, boards), ...films(row, boards), coloring(detail),
      ...detail.turns.map((each, number) => turnCard(each, number, boards, row)), ...ending(row, detail, boards), dialogue(detail, systems));
    pane.scrollTop = 0;
    paint();
    markTurn(0, false);
  }
  function chip(label, kind = "") {
    return make("span", { class: `chip ${kind}` }, label);
  }
  function heading(row, detail, place) {
    const copy = make("button", { type: "button", class: "link", "aria-label": "Copy the link to this trajectory", on: { click: async (event) => {
      const button = event.currentTarget;
      try { await navigator.clipboard.writeText(location.href); button.textContent = "copied"; } catch { button.textContent = "the address bar has it"; }
    } } }, "copy link");
    const chips = [
      chip(row.success ? "✓ solved" : "✗ failed", row.success ? "good" : "bad"), chip(`return ${signed(row.return)}`),
      chip(`${row.turns} turn${row.turns === 1 ? "" : "s"}, ${row.actions} action${row.actions === 1 ? "" : "s"}`), row.tokens === null ? null : chip(`${row.tokens} tokens`),
      row.difficulty ? chip(`difficulty ${row.difficulty}`) : null, row.stop ? chip(`ended: ${row.stop.replaceAll("_", " ")}`) : null,
      row.temperature === null ? null : chip(`T = ${row.temperature}`),
    ];
    if (row.level) chips.push(make("span", { class: "chip", title: detail.signs.join("; ") }, make("span", { class: `level level-${row.level}` }), `alarm ${row.level}`));
    const head = make("div", { class: "detail-head" },
      make("button", { type: "button", class: "back", on: { click: () => { location.hash = "#/trajectories"; } } }, "‹ All trajectories"),
      make("h1", {}, `${runName(row)}${row.moment}`), make("span", { class: "muted" }, `${row.set === "training" ? "training start" : row.set} · ${row.env} · seed ${row.seed}`), make("span", { class: "spacer" }),
      make("span", { class: "muted" }, `${shown.indexOf(place) + 1} / ${shown.length}`), copy);
    return [head, make("div", { class: "chips" }, chips),
      ...(detail.error ? [make("div", { class: "error-box" }, `The environment failed: ${detail.error}`)] : []),
      ...(row.level && row.level !== "green" && detail.signs.length ? [make("p", { class: "small" }, `Alarm: ${detail.signs.join("; ")}`)] : [])];
  }
  function members(row, boards) {
    const same = rows.map((_, place) => place).filter((place) => rows[place].group === row.group);
    const judged = row.weight !== null;
    if (same.length < 2 && !judged) return [];
    const { reason, chosen } = opened.details[byId.get(row.id)];
    const kept = row.weight > 0;
    const decision = judged ? [chip(kept ? `kept, weight ${row.weight}` : "dropped by the filter", kept ? "good" : ""), reason ? make("p", {}, reason.replace(/^(dropped|kept)(: )?/, "")) : null, chosen ? make("p", {}, `recorded as: ${chosen}`) : null] : [];
    const cards = same.map((place) => {
      const other = rows[place], last = other.boards.filter((n) => n !== null).at(-1);
      return make("button", { type: "button", class: "member", "aria-current": other === row ? "true" : null, on: { click: () => { location.hash = address(place); } } },
        board(last, boards, `last board of member ${other.member + 1}`), make("span", {}, outcome(other.success), ` member ${other.member + 1}`),
        make("span", { class: "muted" }, `${signed(other.return)} · ${other.turns} turn${other.turns === 1 ? "" : "s"}`));
    });
    return [make("section", { class: "band", "aria-label": "Group" }, make("div", { class: "band-head" }, make("h2", {}, "Its group"), ...decision), make("div", { class: "members" }, cards))];
  }
  function films(row, boards) {
    // One temperature, so that the strips differ by training alone; actors without a model have none.
    const starts = rows.map((_, place) => place).filter((place) => rows[place].start === row.start).reverse();
    const temperature = row.temperature ?? starts.map((place) => rows[place].temperature).find((each) => each !== null);
    const seen = new Set();
    const same = starts.filter((place) => {
      const other = rows[place], key = `${other.run}/${other.file}`;
      if (other !== row && (seen.has(key) || (other.temperature !== null && other.temperature !== temperature))) return false;
      seen.add(key);
      return true;
    });
    if (seen.size < 2) return [];
    const strips = same.map((place) => {
      const other = rows[place], frames = other.boards.filter((n) => n !== null);
      const name = `${runName(other)}${other.moment}`;
      const pictures = frames.map((number, at) => board(number, boards, at === frames.length - 1 ? `last board, ${other.success ? "solved" : "failed"}` : `before turn ${at + 1}`, at === frames.length - 1 ? `last ${other.success ? "" : "bad"}` : null));
      return make("button", { type: "button", class: "film", "aria-current": other === row ? "true" : null, on: { click: () => { location.hash = address(place); } } },
        make("span", {}, outcome(other.success), ` ${name}`, make("small", {}, `${other.temperature === null ? "" : `T = ${other.temperature} · `}${signed(other.return)} · ${other.turns} turn${other.turns === 1 ? "" : "s"}`)),
        hasBoards(row) ? make("span", { class: "frames" }, pictures.length ? pictures : make("span", { class: "muted" }, "no pictures")) : null);
    });
    return [make("section", { class: "band filmstrip", "aria-label": "The same start through training" }, make("div", { class: "band-head" }, make("h2", {}, "The same start through training"), hasBoards(row) ? make("p", {}, "The board before every turn, and the last one.") : null), make("div", { class: "films" }, strips))];
  }
  function coloring(detail) {
    const has = (name) => detail.turns.some((each) => each.tokens?.[name]);
    if (!detail.turns.some((each) => each.tokens)) return make("p", { class: "small band" }, "The sampled tokens were not recorded, so there is nothing to color.");
    const buttons = MODES.map(([name, label]) => make("button", {
      type: "button", role: "radio", "data-mode": name, "aria-checked": "false", disabled: name !== "plain" && !has(name),
      title: name !== "plain" && !has(name) ? "not recorded: this trajectory was not trained on" : null, on: { click: () => { mode = name; paint(); } },
    }, label));
    return make("div", { class: "coloring" }, make("span", { class: "muted small" }, "Color tokens by"), make("div", { class: "segments", role: "radiogroup", "aria-label": "Color tokens by" }, buttons), make("span", { class: "legend", id: "legend" }));
  }
  function cycleMode() {
    const usable = all("[data-mode]").filter((button) => !button.disabled).map((button) => button.dataset.mode);
    if (!usable.length) return;
    mode = usable[(usable.indexOf(mode) + 1) % usable.length];
    paint();
  }

  /** Split a response's tokens where its thought ends, by the closing tag. */
  function split(tokens) {
    let whole = "";
    const starts = tokens.text.map((each) => { const at = whole.length; whole += each; return at; });
    const end = whole.indexOf("</think>");
    const places = tokens.text.map((_, place) => place);
    if (end < 0) return [["Response", places]];
    const cut = places.find((place) => starts[place] >= end + "</think>".length) ?? places.length;
    return [["Thought", places.slice(0, cut)], ["Answer", places.slice(cut)]].filter(([, part]) => part.length);
  }
  function tokenSpan(tokens, place, number) {
    // A token without text: the stop token, or a part of a character.
    const shownText = tokens.text[place] || (place === tokens.text.length - 1 ? "∎" : "·");
    return make("span", { class: /^\s*(<[^<>]*>)+\s*$/.test(shownText) || !tokens.text[place] ? "token tag" : "token", tabindex: number === 0 && place === 0 ? "0" : "-1", "data-turn": number, "data-token": place }, shownText);
  }
  function turnCard(each, number, boards, row) {
    const parts = [];
    const chips = [each.valid === false ? chip(each.fault || "format not followed", "bad") : null, each.correct === true ? chip("thought true", "good") : each.correct === false ? chip("thought false", "bad") : null,
      each.stopped === false && !each.fault ? chip("cut off", "bad") : null, each.entropy === null || !each.tokens ? null : chip(`entropy ${each.entropy}`),
      each.cut ? chip("context cut") : null];
    parts.push(make("div", { class: "turn-head" }, make("h2", {}, `Turn ${number + 1}`), chips));
    if (each.summary) parts.push(make("div", { class: "part" }, make("h3", {}, "Its summary before"), make("div", { class: "said", dir: "auto" }, each.summary)));
    if (each.tokens) {
      for (const [label, places] of split(each.tokens)) {
        parts.push(make("div", { class: "part" }, make("h3", {}, label), make("div", { class: "said", dir: "auto" }, places.map((place) => tokenSpan(each.tokens, place, number)))));
      }
    } else {
      if (each.thought) parts.push(make("div", { class: "part" }, make("h3", {}, "Thought"), make("div", { class: "said", dir: "auto" }, each.thought)));
      if (each.response) parts.push(make("div", { class: "part" }, make("h3", {}, "Response"), make("div", { class: "said", dir: "auto" }, each.response)));
    }
    const acts = each.actions.map((name) => make("span", { class: "act" }, ARROWS[name.toLowerCase()] ? `${ARROWS[name.toLowerCase()]} ${name}` : name));
    const terms = Object.entries(each.rewards).map(([name, value]) => make("span", {}, `${name} `, make("b", { class: value > 0 ? "pos" : value < 0 ? "neg" : "" }, signed(value))));
    parts.push(make("div", { class: "bottom" },
      make("div", { class: "part" }, make("h3", {}, "Executed"), make("div", { class: "acts" }, acts.length ? acts : make("span", { class: "muted" }, "nothing"))),
      make("div", { class: "part" }, make("h3", {}, "Reward"), make("div", { class: "terms" }, terms.length ? terms : make("span", { class: "muted" }, "none")))));
    const picture = board(each.board, boards, `Board before turn ${number + 1}`, "board");
    const seen = make("details", { open: !picture }, make("summary", {}, "What the agent saw"), make("pre", { dir: "auto" }, each.observation));
    parts.push(seen);
    return make("article", { class: `turn ${picture ? "" : "no-board"}`, "data-turn-card": number, "aria-label": `Turn ${number + 1} of ${row.turns}` }, picture ? make("div", {}, picture) : null, make("div", {}, parts));
  }
  function ending(row, detail, boards) {
    const picture = board(detail.final, boards, "Board at the end", "board");
    const words = [outcome(row.success), make("strong", {}, row.success ? " Solved" : " Not solved"), ` after ${row.actions} action${row.actions === 1 ? "" : "s"}, return ${signed(row.return)}${row.stop ? `; ended: ${row.stop.replaceAll("_", " ")}` : ""}`];
    return [make("article", { class: `turn final ${picture ? "" : "no-board"}`, "aria-label": "The end" }, picture ? make("div", {}, picture) : null, make("p", {}, words))];
  }
  function dialogue(detail, systems) {
    if (!systems[detail.system]) return "";
    return make("details", {}, make("summary", {}, "System message and instructions"), make("pre", { dir: "auto" }, systems[detail.system]));
  }
  function markTurn(number, scroll) {
    const cards = all("[data-turn-card]");
    if (!cards.length) return;
    turn = Math.min(cards.length - 1, Math.max(0, number));
    cards.forEach((each, place) => each.classList.toggle("current", place === turn));
    if (scroll) cards[turn].scrollIntoView({ block: "start", behavior: calm.matches ? "auto" : "smooth" });
  }

  // --- tokens -----------------------------------------------------------------------------------

  function paint() {
    const turns = opened && current !== null ? opened.details[current].turns : [];
    const usable = mode === "plain" || turns.some((each) => each.tokens?.[mode]) ? mode : "plain";
    for (const button of all("[data-mode]")) button.setAttribute("aria-checked", String(button.dataset.mode === usable));
    const kind = MODES.find(([name]) => name === usable)[2];
    const strength = (value) => (kind === "surprise" ? -value : kind === "sequential" ? value : Math.abs(value));
    const values = usable === "plain" ? [] : turns.flatMap((each) => each.tokens?.[usable] ?? []).filter((value) => typeof value === "number");
    const sorted = values.map(strength).sort((a, b) => a - b);
    // The largest values may be far out: the color is full at the 98th of 100.
    const most = Math.max(sorted[Math.floor(0.98 * (sorted.length - 1))] ?? 0, FULL[usable] ?? 0);
    for (const span of all(".token")) {
      const value = turns[span.dataset.turn].tokens[usable]?.[span.dataset.token];
      if (typeof value !== "number") { span.style.backgroundColor = ""; continue; }
      const alpha = 0.62 * Math.min(1, Math.max(0, strength(value)) / most);
      span.style.backgroundColor = `rgba(var(--${kind === "diverging" ? (value < 0 ? "neg" : "pos") : "seq"}), ${alpha.toFixed(3)})`;
    }
    const legend = one("#legend");
    if (!legend) return;
    if (!values.length) { legend.replaceChildren(); return; }
    const bar = make("i", { "aria-hidden": "true" });
    bar.style.background = kind === "diverging" ? "linear-gradient(90deg, rgba(var(--neg), .62), rgba(var(--neg), 0), rgba(var(--pos), 0), rgba(var(--pos), .62))" : "linear-gradient(90deg, rgba(var(--seq), 0), rgba(var(--seq), .62))";
    const top = Number(most.toPrecision(2));
    legend.replaceChildren(...(kind === "diverging" ? [`−${top}`, bar, `+${top}`] : [kind === "surprise" ? "certain" : "0", bar, kind === "surprise" ? `log-prob −${top}` : `${top} nats`]));
  }
  const tip = one("#tip");
  function showTip(span) {
    const tokens = opened.details[current].turns[span.dataset.turn].tokens, place = Number(span.dataset.token);
    const lines = Object.entries(MEANING).filter(([name]) => tokens[name]).map(([name, label]) => make("tr", { class: name === mode ? "on" : null }, make("td", {}, label), make("td", {}, name === "advantage" || name === "gap" ? signed(tokens[name][place]) : String(tokens[name][place] ?? "–").replace("-", "−"))));
    if (tokens.log_prob) lines.unshift(make("tr", {}, make("td", {}, "probability"), make("td", {}, `${tokens.log_prob[place] === null ? "–" : (100 * Math.exp(tokens.log_prob[place])).toPrecision(3)} %`)));
    tip.replaceChildren(make("b", {}, tokens.text[place] ? JSON.stringify(tokens.text[place]) : "a token without text"), make("table", {}, make("tbody", {}, lines)));
    tip.hidden = false;
    const box = span.getClientRects()[0] ?? span.getBoundingClientRect(), width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = `${Math.max(6, Math.min(innerWidth - width - 6, box.left))}px`;
    tip.style.top = `${box.bottom + height + 10 > innerHeight ? box.top - height - 6 : box.bottom + 6}px`;
    span.setAttribute("aria-describedby", "tip");
  }
  function hideTip() {
    tip.hidden = true;
    all("[aria-describedby='tip']").forEach((span) => span.removeAttribute("aria-describedby"));
  }
  for (const [event, act] of [["mouseover", 1], ["focusin", 1], ["mouseout", 0], ["focusout", 0], ["click", 1]]) {
    one("#detail")?.addEventListener(event, (happened) => {
      const span = happened.target.closest?.(".token");
      if (span && act) showTip(span);
      else if (span) hideTip();
    });
  }
  one("#detail")?.addEventListener("scroll", hideTip, { passive: true });
  function stepToken(span, by) {
    const spans = all(".token"), next = spans[spans.indexOf(span) + by];
    if (!next) return;
    span.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    markTurn(Number(next.dataset.turn), false);
  }

  // --- keyboard ---------------------------------------------------------------------------------

  const help = one("#help");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const inField = event.target.closest("input, select, textarea");
    if (event.key === "Escape") {
      if (inField) inField.blur();
      else if (event.target.classList.contains("token")) one("#detail").focus();
      else if (tab === "trajectories" && narrow.matches) location.hash = "#/trajectories";
      else list?.focus();
      hideTip();
      return;
    }
    if (inField && !(event.target.id === "search" && ["ArrowDown", "Enter"].includes(event.key))) return;
    const browsing = tab === "trajectories" && rows.length > 0;
    const onToken = event.target.classList.contains("token") && event.key.startsWith("Arrow");
    const scrolls = event.target.closest("pre");
    const acts = {
      "?": () => help.showModal(), t: toggleTheme,
      1: () => go(tabs[0]), 2: () => go(tabs[1]), 3: () => tabs[2] && go(tabs[2]), 4: () => tabs[3] && go(tabs[3]),
      "/": () => { const field = browsing ? one("#search") : tab === "configuration" ? all("[data-config-search]").find((each) => each.offsetParent) : null; field?.focus(); field?.select(); return Boolean(field); },
      ...(browsing && !scrolls ? {
        j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1), Home: () => step(-1e9), End: () => step(1e9),
        PageDown: () => (event.target === list ? step(10) : false), PageUp: () => (event.target === list ? step(-10) : false),
        l: () => markTurn(turn + 1, true), h: () => markTurn(turn - 1, true),
        ArrowRight: () => (onToken ? stepToken(event.target, 1) : markTurn(turn + 1, true)), ArrowLeft: () => (onToken ? stepToken(event.target, -1) : markTurn(turn - 1, true)),
        c: cycleMode,
        Enter: () => (event.target.id === "search" ? (event.target.blur(), list.focus(), step(0)) : false),
      } : {}),
    };
    const act = acts[event.key];
    if (act && act() !== false) event.preventDefault();
  });
  one("#help-button").addEventListener("click", () => help.showModal());
  one("#theme").addEventListener("click", toggleTheme);
  prefersDark.addEventListener("change", applyTheme);
  addEventListener("hashchange", route);

  // --- start ------------------------------------------------------------------------------------

  applyTheme();
  setUpCharts();
  setUpList();
  route();
  root.dataset.ready = Math.round(performance.now());
})();
