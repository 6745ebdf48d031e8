"use strict";
(() => {
  const trace = JSON.parse(document.getElementById("trace").textContent);
  const byId = (id) => document.getElementById(id);
  const PAUSE_FROM = 0.08, PAUSE_SHOWN = 0.05, UNFOLDED_UP_TO = 400, TICK = 76;

  // ---- words

  const took = (ms) => {
    if (ms === undefined) return "";
    if (ms < 1) return ms > 0 ? "<1 ms" : "0 ms";
    if (ms < 1000) return `${Math.round(ms)} ms`;
    if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
    const minutes = Math.floor(ms / 60000), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
    if (minutes < 60) return `${minutes} min ${Math.floor(ms / 1000) % 60} s`;
    if (hours < 48) return `${hours} h ${minutes % 60} min`;
    return `${days} d ${hours % 24} h`;
  };
  const at = (ms) => new Date(trace.originMs + ms).toISOString();
  const clock = (ms) => at(ms).slice(11, 19);
  const used = (use) => {
    const parts = [];
    if (use && (use.input_tokens || use.output_tokens))
      parts.push(`${(use.input_tokens || 0).toLocaleString("en")} tokens in, ${(use.output_tokens || 0).toLocaleString("en")} out`);
    if (use && use.cost) parts.push(`$${use.cost}`);
    return parts.join(", ");
  };
  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // ---- entries: the tree as a list, each with its place in it

  const entries = [];
  const take = (node, level, parent) => {
    const entry = { node, level, parent, index: entries.length, folded: false, wrong: false };
    entry.own = node.status === "error" || node.status === "warning";
    entries.push(entry);
    entry.children = (node.children || []).map((child) => take(child, level + 1, entry));
    entry.wrong = entry.own || entry.children.some((child) => child.wrong);
    const facts = node.facts ? Object.values(node.facts).join(" ") : "";
    entry.text = `${node.kind} ${node.name} ${node.detail || ""} ${node.resume || ""} ${facts}`.toLowerCase();
    return entry;
  };
  const tops = trace.nodes.map((node) => take(node, 1, null));
  const end = (node) => node.end ?? (node.status === "open" || node.kind === "gap" ? trace.end : node.start);
  const foldAll = (folded) => {
    for (const entry of entries) entry.folded = folded && entry.children.length > 0;
  };
  if (entries.length > UNFOLDED_UP_TO)
    for (const entry of entries) entry.folded = entry.level > 1 && entry.children.length > 0 && !entry.wrong;

  // ---- time: what nobody ran in is drawn narrower than it was

  const pieces = (() => {
    const known = entries.filter((entry) => entry.node.start !== undefined);
    const first = Math.min(...known.map((entry) => entry.node.start), trace.end);
    const last = Math.max(...known.map((entry) => end(entry.node)), first + 0.001);
    const busy = [];
    const runs = known.filter((entry) => entry.node.kind === "leg").sort((a, b) => a.node.start - b.node.start);
    for (const { node } of runs) {
      const before = busy[busy.length - 1];
      if (before && node.start <= before.to) before.to = Math.max(before.to, end(node));
      else busy.push({ from: node.start, to: end(node) });
    }
    const active = busy.reduce((sum, one) => sum + one.to - one.from, 0) || last - first;
    const found = [];
    const add = (from, to, idle) => {
      if (to <= from) return;
      const pause = idle && to - from > active * PAUSE_FROM;
      found.push({ from, to, pause, width: pause ? active * PAUSE_SHOWN : to - from });
    };
    let now = first;
    for (const one of busy) {
      add(now, one.from, true);
      add(Math.max(now, one.from), one.to, false);
      now = Math.max(now, one.to);
    }
    add(now, last, busy.length > 0);
    let x = 0;
    for (const piece of found) { piece.x = x; x += piece.width; }
    return found;
  })();
  const place = (ms) => {
    const piece = pieces.find((one) => ms <= one.to) || pieces[pieces.length - 1];
    if (!piece) return 0;
    const share = Math.min(Math.max((ms - piece.from) / (piece.to - piece.from), 0), 1);
    return piece.x + share * piece.width;
  };
  const whole = pieces.length ? [pieces[0].from, pieces[pieces.length - 1].to] : [0, 1];
  let shown = whole;
  const scale = () => {
    const left = place(shown[0]), width = place(shown[1]) - left || 1;
    return (ms) => ((place(ms) - left) / width) * 100;
  };

  // ---- drawing

  const rows = byId("rows"), details = byId("details");
  let drawn = [], current = null, chosen = null, filter = "", errorsOnly = false;

  const visible = () => {
    const words = filter.split(/\s+/).filter(Boolean);
    const searching = words.length > 0 || errorsOnly;
    const fits = (entry) => (!errorsOnly || entry.own) && words.every((word) => entry.text.includes(word));
    const kept = new Set();
    if (searching)
      for (const entry of entries) if (fits(entry)) for (let one = entry; one && !kept.has(one); one = one.parent) kept.add(one);
    const found = [];
    const walk = (entry) => {
      if (searching && !kept.has(entry)) return;
      found.push(entry);
      if (searching || !entry.folded) entry.children.forEach(walk);
    };
    tops.forEach(walk);
    return found;
  };

  const bar = (entry, x) => {
    const element = make("div", "bar");
    const { node } = entry;
    if (node.start === undefined) return null;
    const left = x(node.start), right = x(end(node));
    if (right < 0 || left > 100) element.classList.add("outside");
    element.style.left = `${Math.min(Math.max(left, 0), 100)}%`;
    element.style.width = `${Math.max(Math.min(right, 100) - Math.max(left, 0), 0)}%`;
    return element;
  };

  const row = (entry, x) => {
    const { node } = entry;
    const element = make("div", `row ${node.kind} ${node.status}`);
    element.setAttribute("role", "row");
    element.setAttribute("aria-level", entry.level);
    if (entry.children.length) element.setAttribute("aria-expanded", String(!entry.folded));
    element.tabIndex = -1;
    element.dataset.index = entry.index;
    const label = make("div", "label");
    label.setAttribute("role", "gridcell");
    const fold = make("span", "fold", entry.children.length ? (entry.folded ? "▸" : "▾") : "");
    fold.style.marginLeft = `${(entry.level - 1) * 14}px`;
    fold.setAttribute("aria-hidden", "true");
    const mark = node.status === "error" ? "✗ " : node.status === "warning" ? "! " : "";
    const worker = node.kind === "leg" ? (node.facts || {}).worker : "";
    const told = entry.own ? [node.detail, used(node.use), worker] : [worker, used(node.use), node.detail];
    const more = told.filter(Boolean).join("  ·  ");
    label.append(fold, make("span", "text", mark + node.name), make("span", "more", more));
    label.title = [node.name, more].filter(Boolean).join("\n").slice(0, 600);
    const duration = node.start === undefined || (node.end === undefined && node.status !== "open") ? undefined : end(node) - node.start;
    const time = make("div", "took", took(duration));
    time.setAttribute("role", "gridcell");
    const track = make("div", "track");
    track.setAttribute("role", "gridcell");
    const drawnBar = bar(entry, x);
    if (drawnBar) track.append(drawnBar);
    element.append(label, time, track);
    entry.row = element;
    return element;
  };

  const axis = (x) => {
    const ticks = byId("ticks");
    ticks.replaceChildren();
    const room = (TICK / (ticks.clientWidth || 600)) * 100;
    let free = -1;
    const tick = (ms, text, name) => {
      const left = x(ms);
      if (left < free || left < 0 || left > 100 - room * 0.6) return;
      const element = make("span", name, text);
      element.style.left = `${left}%`;
      ticks.append(element);
      free = left + room;
    };
    for (const piece of pieces) {
      const from = Math.max(piece.from, shown[0]), to = Math.min(piece.to, shown[1]);
      if (to <= from) continue;
      if (piece.pause) { tick(from, took(piece.to - piece.from), "pause"); continue; }
      const count = Math.max(Math.floor(((x(to) - x(from)) / 100) * 8), 1);
      for (let number = 0; number < count; number++) {
        const ms = from + ((to - from) * number) / count;
        tick(ms, number ? `+${took(ms - from)}` : clock(from));
      }
    }
  };

  const draw = () => {
    const x = scale();
    axis(x);
    drawn = visible();
    for (const entry of entries) entry.row = null;
    const fragment = document.createDocumentFragment();
    for (const entry of drawn) fragment.append(row(entry, x));
    rows.replaceChildren(fragment);
    rows.setAttribute("aria-rowcount", drawn.length);
    byId("nothing").hidden = drawn.length > 0;
    byId("shown").textContent = `${drawn.length.toLocaleString("en")} of ${entries.length.toLocaleString("en")} entries` +
      (trace.omitted ? `; ${trace.omitted.toLocaleString("en")} more are not on this page` : "");
    byId("whole").disabled = shown === whole;
    if (!current || !current.row) current = drawn[0] || null;
    if (current) current.row.tabIndex = 0;
    if (chosen && chosen.row) chosen.row.setAttribute("aria-selected", "true");
  };

  const focusOn = (entry, block = "nearest") => {
    if (!entry || !entry.row) return;
    if (current && current.row) current.row.tabIndex = -1;
    current = entry;
    entry.row.tabIndex = 0;
    entry.row.focus({ preventScroll: true });
    entry.row.scrollIntoView({ block });
    if (!details.hidden) choose(entry);
  };

  const setFolded = (entry, folded) => {
    entry.folded = folded;
    draw();
    focusOn(entry);
  };

  // ---- details

  const choose = (entry) => {
    if (chosen && chosen.row) chosen.row.removeAttribute("aria-selected");
    chosen = entry;
    if (entry.row) entry.row.setAttribute("aria-selected", "true");
    const { node } = entry;
    const close = make("button", "close", "Close");
    close.type = "button";
    close.addEventListener("click", () => { hide(); focusOn(entry); });
    const zoom = make("button", "zoom", "Show this time");
    zoom.type = "button";
    zoom.addEventListener("click", () => zoomTo(entry));
    const list = make("dl");
    const fact = (name, value) => {
      if (value !== undefined && value !== "") list.append(make("dt", "", name), make("dd", "", String(value)));
    };
    fact("kind", node.kind);
    fact("status", node.status);
    fact("began", node.start === undefined ? undefined : at(node.start));
    fact("took", node.start === undefined || node.end === undefined ? undefined : took(node.end - node.start));
    fact("used", used(node.use));
    if (node.kind === "leg") fact("trace id", trace.traces[node.name.replace("leg ", "")]);
    for (const [name, value] of Object.entries(node.facts || {})) fact(name, value);
    details.replaceChildren(close, make("h2", "", node.name));
    if (node.detail) details.append(make("p", `said ${node.status}`, node.detail));
    if (node.resume) details.append(make("h3", "", "Next"), make("code", "command", node.resume));
    details.append(make("h3", "", "Facts"), list);
    const stack = make("pre", "", node.stack);
    if (node.stack) details.append(make("h3", "", "Where it was raised"), stack);
    if (node.wholeStack) {
      const whole = make("details");
      whole.append(make("summary", "", "With the places in libraries"), make("pre", "", node.wholeStack));
      details.append(whole);
    }
    details.append(zoom);
    details.hidden = false;
    if (node.stack && node.stack.startsWith("Traceback")) stack.scrollTop = stack.scrollHeight;
  };
  const hide = () => {
    details.hidden = true;
    if (chosen && chosen.row) chosen.row.removeAttribute("aria-selected");
    chosen = null;
  };
  const zoomTo = (entry) => {
    const from = entry.node.start, to = end(entry.node);
    if (from === undefined) return;
    const around = Math.max((to - from) * 0.05, 0.01);
    shown = [Math.max(from - around, whole[0]), Math.min(to + around, whole[1])];
    draw();
  };

  // ---- what a person does

  const entryOf = (target) => {
    const element = target.closest(".row");
    return element ? entries[Number(element.dataset.index)] : null;
  };
  rows.addEventListener("click", (event) => {
    const entry = entryOf(event.target);
    if (!entry) return;
    if (event.target.classList.contains("fold") && entry.children.length) { setFolded(entry, !entry.folded); return; }
    focusOn(entry);
    choose(entry);
  });
  rows.addEventListener("dblclick", (event) => {
    const entry = entryOf(event.target);
    if (entry) zoomTo(entry);
  });
  rows.addEventListener("keydown", (event) => {
    const entry = entryOf(event.target);
    if (!entry || event.ctrlKey || event.metaKey || event.altKey) return;
    const index = drawn.indexOf(entry);
    const moves = {
      ArrowDown: () => focusOn(drawn[index + 1]),
      ArrowUp: () => focusOn(drawn[index - 1]),
      PageDown: () => focusOn(drawn[Math.min(index + 20, drawn.length - 1)]),
      PageUp: () => focusOn(drawn[Math.max(index - 20, 0)]),
      Home: () => focusOn(drawn[0]),
      End: () => focusOn(drawn[drawn.length - 1]),
      ArrowRight: () => (entry.folded ? setFolded(entry, false) : focusOn(entry.children.find((child) => child.row))),
      ArrowLeft: () => (entry.children.length && !entry.folded ? setFolded(entry, true) : focusOn(entry.parent)),
      Enter: () => choose(entry),
      " ": () => choose(entry),
      z: () => zoomTo(entry),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });
  const nextError = () => {
    const wrong = drawn.filter((entry) => entry.own && !entry.children.some((child) => child.wrong));
    const from = current ? drawn.indexOf(current) : -1;
    const next = wrong.find((entry) => drawn.indexOf(entry) > from) || wrong[0];
    if (!next) return;
    focusOn(next, "center");
    choose(next);
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input[type=search]");
    if (event.key === "Escape") {
      if (typing && filter) { byId("filter").value = filter = ""; draw(); }
      else if (!details.hidden) { const entry = chosen; hide(); focusOn(entry); }
      else if (shown !== whole) { shown = whole; draw(); }
      return;
    }
    if (typing) return;
    if (event.key === "/") { event.preventDefault(); byId("filter").focus(); }
    if (event.key === "e") byId("errors").click();
    if (event.key === "n") nextError();
    if (event.key === "w" && shown !== whole) { shown = whole; draw(); }
  });
  byId("filter").addEventListener("input", (event) => { filter = event.target.value.trim().toLowerCase(); draw(); });
  byId("errors").addEventListener("change", (event) => { errorsOnly = event.target.checked; draw(); });
  byId("next").addEventListener("click", nextError);
  byId("fold").addEventListener("click", () => { foldAll(true); draw(); });
  byId("unfold").addEventListener("click", () => { foldAll(false); draw(); });
  byId("whole").addEventListener("click", () => { shown = whole; draw(); });

  // ---- the head

  byId("graph").textContent = trace.graph;
  byId("status").textContent = trace.status;
  byId("status").classList.add(trace.status);
  const failed = entries.filter((entry) => entry.own && !entry.children.some((child) => child.wrong)).length;
  const facts = [
    ["job", trace.job],
    ["step", trace.step],
    ["legs", tops.filter((entry) => entry.node.kind === "leg").length],
    ["failures", failed],
    ["used", used(trace.use) || "no tokens"],
    ["from", trace.origin],
    ["over", took(whole[1] - whole[0])],
    ["drawn", trace.drawn],
  ];
  for (const [name, value] of facts) {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", String(value)));
    byId("summary").append(pair);
  }
  byId("next").disabled = failed === 0;
  draw();
})();
