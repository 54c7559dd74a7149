// The search of failures/index.md: the rules of `mmrepro find` (harness/tools/catalogue/find.py), on the
// same index. tests/unit/test_failure_pages.py holds that both name the same failures.
"use strict";

const MAX_CHARS = 1 << 20;
const MAX_LINE = 4000;
const MIN_FRAGMENT = 10;
const MAX_PERHAPS = 5;
const LEAST_COVER = 0.5;
const LEAST_SHARE = 0.6;
const LONG = 40;
const LINE_END = /\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/;
const REFERENCE = new RegExp(
  "https?://(?:www\\.)?github\\.com/([\\w.-]+)/([\\w.-]+)/(?:issues|pull|discussions)/(\\d+)" +
    "|(?<![\\w/.-])(?:([\\w.-]+)/)?([A-Za-z][\\w.-]*)#(\\d+)\\b" +
    "|(\\b(?:[Cc][Vv][Ee]|[Pp][Yy][Ss][Ee][Cc]|[Gg][Hh][Ss][Aa])-[\\w-]+)",
  "g",
);
const FUNCTION = /, in (?:[\w.<>]+\.)?(\w+)$|^\s*(?:[\w.<>]+\.)?(\w+) \([^()]+:\d+\)$/gm;
const WORD = /[A-Za-z_][A-Za-z0-9_]*|\d{3,}/g;
const PART = /[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d{3,}/g;
const STOP = new Set(
  ("a an and are as at be been by can does for from has have how i if in into is it its my no not of on one or our " +
    "so than that the then there this to was we were what when where which while who why will with without you your " +
    "error failed failure file line py vllm sglang lmdeploy minivllm server engine request requests model most " +
    "recent call last traceback enginedeaderror dead see stack trace above root cause internal").split(" "),
);

const expressions = new Map();

function expression(regex) {
  if (!expressions.has(regex)) {
    expressions.set(regex, new RegExp(regex));
  }
  return expressions.get(regex);
}

// What a text belongs to, surest and best first; []: nothing is known of it.
function findFailures(asked, known) {
  const text = asked.slice(-MAX_CHARS);
  const hits = merged([...byReference(text, known), ...byPattern(text, known)]);
  const taken = new Set(hits.map((hit) => hit.entry));
  let perhaps = byWords(text, known).filter((hit) => !taken.has(hit.entry));
  if (hits.some((hit) => hit.sure)) {
    // Beside a sure answer a paste has no further question; a short text may.
    perhaps = tokens(text).length > LONG ? [] : perhaps.slice(0, 2);
  }
  hits.sort(order);
  return [...hits, ...perhaps];
}

function order(one, other) {
  const imprecise = (hit) => (hit.entry.kind === "class" ? 1 : 0) + (hit.entry.planted ? 2 : 0);
  return (
    Number(other.sure) - Number(one.sure) ||
    imprecise(one) - imprecise(other) ||
    other.score - one.score ||
    byName(one, other)
  );
}

function byName(one, other) {
  if (one.entry.name === other.entry.name) {
    return 0;
  }
  return one.entry.name < other.entry.name ? -1 : 1;
}

function merged(hits) {
  const byEntry = new Map();
  for (const hit of hits) {
    const known = byEntry.get(hit.entry);
    if (known === undefined) {
      byEntry.set(hit.entry, hit);
      continue;
    }
    known.because.push(...hit.because.filter((text) => !known.because.includes(text)));
    known.score += hit.score;
    known.sure = known.sure || hit.sure;
  }
  return [...byEntry.values()];
}

// ---------------------------------------------------------------- issues

function referencesIn(text) {
  const references = new Set();
  for (const match of text.matchAll(REFERENCE)) {
    if (match[7]) {
      references.add(match[7].toUpperCase());
      continue;
    }
    const owner = match[1] || match[4] || "";
    references.add(`${owner}/${match[2] || match[5]}#${match[3] || match[6]}`.replace(/^\/+/, "").toLowerCase());
  }
  return [...references];
}

function namesOf([name, , url]) {
  const names = new Set([name.toLowerCase(), name.toUpperCase()]);
  for (const match of url.matchAll(REFERENCE)) {
    if (match[3]) {
      const issue = `${match[2]}#${match[3]}`.toLowerCase();
      names.add(issue);
      names.add(`${match[1].toLowerCase()}/${issue}`);
    }
  }
  return names;
}

function byReference(text, known) {
  const asked = referencesIn(text);
  const bare = /^#?(\d{2,6})$/.exec(text.trim());
  const hits = [];
  for (const entry of known) {
    const hit = namedBy(entry, asked, bare ? bare[1] : "");
    if (hit !== null) {
      hits.push(hit);
    }
  }
  return hits;
}

function namedBy(entry, asked, number) {
  for (const reference of entry.references) {
    const names = namesOf(reference);
    for (const name of asked) {
      if (names.has(name)) {
        return { entry, sure: true, because: [`it names ${name}`], score: 10 };
      }
    }
    if (number && [...names].some((name) => name.endsWith(`#${number}`))) {
      return { entry, sure: false, because: [`${reference[0]} has that number`], score: 2 };
    }
  }
  return null;
}

function isReference(text) {
  const address = text.trim().split("#issuecomment")[0].replace(/\/+$/, "");
  const match = [...address.matchAll(REFERENCE)][0];
  return match !== undefined && match[0] === address;
}

// ---------------------------------------------------------------- log lines

function byPattern(text, known) {
  const lines = text.split(LINE_END).map((line) => line.slice(0, MAX_LINE));
  if (lines[lines.length - 1] === "") {
    lines.pop();
  }
  const fragment = fragmentOf(text, lines);
  const functions = [...text.matchAll(FUNCTION)].map((match) => match[1] || match[2]);
  const deciding = decidingRanks(lines, known);
  const hits = [];
  for (const entry of known) {
    const because = [];
    const fitting = [];
    for (const pattern of entry.patterns) {
      // A rule that another one comes before says nothing of a whole line.
      if (pattern.rank !== null && !deciding.has(pattern.rank) && !fragment) {
        continue;
      }
      const part = shows(pattern, lines, fragment);
      if (part) {
        fitting.push(pattern);
        because.push(`its ${pattern.name}: ${part}`);
      }
    }
    // Two patterns that are not sure by themselves are together.
    let sure = fitting.length > 1 || fitting.some((pattern) => pattern.sure);
    const frames = framesIn(entry, functions);
    if (frames) {
      because.push(`its stack: ${frames}`);
      sure = sure || fitting.length > 0;
    }
    if (because.length) {
      hits.push({ entry, sure, because, score: 1 + because.length });
    }
  }
  return hits;
}

// A short text of several words, which may be a piece of a message; else empty.
function fragmentOf(text, lines) {
  const whole = plain(text);
  return lines.length > 2 || whole.length < MIN_FRAGMENT || !whole.includes(" ") ? "" : whole;
}

function plain(text) {
  return text.split(/\s+/).filter(Boolean).join(" ").replace(/^["'`]+|["'`]+$/g, "").toLowerCase();
}

// Ranks of the rules that fit a line first.
function decidingRanks(lines, known) {
  const rules = [];
  for (const entry of known) {
    rules.push(...entry.patterns.filter((pattern) => pattern.rank !== null));
  }
  rules.sort((one, other) => one.rank - other.rank);
  const deciding = new Set();
  for (const line of lines) {
    const first = rules.find((rule) => fits(rule, line));
    if (first !== undefined) {
      deciding.add(first.rank);
    }
  }
  return deciding;
}

function fits(pattern, line) {
  if (pattern.texts.length && !pattern.texts.some((text) => line.includes(text))) {
    return false;
  }
  return expression(pattern.regex).test(line);
}

function shows(pattern, lines, fragment) {
  if (fragment && pattern.texts.some((text) => plain(text).includes(fragment))) {
    return fragment;
  }
  for (const line of lines) {
    if (fits(pattern, line)) {
      const words = expression(pattern.regex).exec(line)[0].trim();
      return words.slice(0, 100) || line.trim().slice(0, 100);
    }
  }
  return "";
}

// The innermost functions of its stack, where the text holds them next to each other.
function framesIn(entry, functions) {
  const wanted = entry.frames.slice(0, 3);
  if (wanted.length < 2) {
    return "";
  }
  // A traceback has the innermost function last, py-spy has it first.
  const orders = [wanted.join(), [...wanted].reverse().join()];
  for (let start = 0; start < functions.length; start += 1) {
    if (orders.includes(functions.slice(start, start + wanted.length).join())) {
      return wanted.join(" ← ");
    }
  }
  return "";
}

// ---------------------------------------------------------------- words

function tokens(text) {
  const words = [];
  for (const word of text.match(WORD) || []) {
    words.push(word.toLowerCase());
    const parts = word.match(PART) || [];
    if (parts.length > 1) {
      words.push(...parts.map((part) => part.toLowerCase()));
    }
  }
  return words.filter((word) => word.length > 2 && !STOP.has(word)).map(stem);
}

function stem(word) {
  for (const end of ["ings", "ing", "ies", "ed", "es", "s"]) {
    if (word.endsWith(end) && word.length - end.length >= 3) {
      return word.slice(0, -end.length);
    }
  }
  return word;
}

const bags = new Map();

// The words of each entry, made once.
function bagsOf(known) {
  if (!bags.has(known)) {
    bags.set(known, known.map((entry) => new Set(tokens(`${entry.name} ${entry.title} ${entry.words}`))));
  }
  return bags.get(known);
}

function byWords(text, known) {
  const asked = new Set(tokens(text));
  if (!asked.size || asked.size > LONG || isReference(text)) {
    return [];
  }
  const words = bagsOf(known);
  // The rarer a word is among the entries, the more it tells.
  const weights = new Map();
  let total = 0;
  for (const token of asked) {
    const often = words.filter((bag) => bag.has(token)).length;
    weights.set(token, Math.log(1 + words.length / (1 + often)));
    total += weights.get(token);
  }
  const weigh = (some) => some.reduce((sum, token) => sum + weights.get(token), 0) / total;
  const hits = [];
  known.forEach((entry, place) => {
    const shared = [...asked].filter((token) => words[place].has(token));
    const heading = new Set(tokens(`${entry.name} ${entry.title}`));
    const inHeading = [...asked].filter((token) => heading.has(token));
    // Two words in common; one alone where only one is asked for, in the heading.
    const enough = shared.length >= 2 || (asked.size === 1 && shared.length === 1 && inHeading.length > 0);
    const cover = weigh(shared);
    if (enough && cover >= LEAST_COVER) {
      const heaviest = [...shared].sort((one, other) => weights.get(other) - weights.get(one) || (one < other ? -1 : 1));
      const because = [`words: ${heaviest.slice(0, 6).join(", ")}`];
      // What is in the heading counts half as much again.
      hits.push({ entry, sure: false, because, score: cover + 0.5 * weigh(inHeading) });
    }
  });
  hits.sort((one, other) => other.score - one.score || byName(one, other));
  const best = hits.length ? hits[0].score : 0;
  return hits.filter((hit) => hit.score >= LEAST_SHARE * best).slice(0, MAX_PERHAPS);
}

// ---------------------------------------------------------------- the page

function setUp() {
  const form = document.getElementById("find");
  const text = document.getElementById("find-text");
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    showHits(text.value);
  });
  text.addEventListener("paste", () => setTimeout(() => showHits(text.value)));
  // Not "q": the theme's own search takes that.
  const asked = new URLSearchParams(window.location.search).get("line");
  if (asked) {
    text.value = asked;
    showHits(asked);
  }
  setUpFilter();
}

function showHits(text) {
  const result = document.getElementById("find-result");
  const hits = text.trim() ? findFailures(text, FIND_INDEX) : [];
  const sure = hits.filter((hit) => hit.sure);
  const perhaps = hits.filter((hit) => !hit.sure);
  result.replaceChildren();
  if (!text.trim()) {
    result.append(element("p", "Paste a text first."));
    return;
  }
  if (!hits.length) {
    result.append(element("p", "No known failure contains this text."));
    return;
  }
  if (sure.length) {
    result.append(element("h2", "It is a known failure"), listOf(sure));
  }
  if (perhaps.length) {
    const words = sure.length ? "Weaker matches" : "No sure match; perhaps one of these";
    result.append(element("h2", words), listOf(perhaps));
  }
}

function listOf(hits) {
  const list = element("ul", "");
  for (const { entry, because } of hits) {
    const item = element("li", "");
    const link = element("a", entry.title);
    link.href = entry.page;
    item.append(link, element("p", `${entry.name}. Because of ${because.join("; ")}`));
    if (entry.fixed) {
      item.append(element("p", `${entry.fixed[0].toUpperCase()}${entry.fixed.slice(1)}.`));
    }
    if (entry.workarounds.length) {
      item.append(element("p", `Workaround: ${entry.workarounds[0]}.`));
    }
    list.append(item);
  }
  return list;
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function setUpFilter() {
  const form = document.getElementById("filter");
  const [words, engine, kind] = ["words", "engine", "class"].map((name) => document.getElementById(`filter-${name}`));
  const cards = [...document.querySelectorAll("#cards > li")];
  const filter = () => {
    const asked = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const card of cards) {
      const text = card.textContent.toLowerCase();
      const wanted =
        (!engine.value || card.dataset.engine === engine.value) &&
        (!kind.value || card.dataset.class === kind.value) &&
        asked.every((word) => text.includes(word));
      card.hidden = !wanted;
      shown += wanted ? 1 : 0;
    }
    document.getElementById("filter-count").textContent = `${shown} of ${cards.length}`;
  };
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
}

if (typeof document !== "undefined") {
  setUp();
}
