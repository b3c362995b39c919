/**
 * Colours of tenants and of GPU types. A name keeps its colour from visit to visit: it follows from the name and
 * from the other names that are known, never from the order in which answers arrive.
 */

/** @typedef {{colours: number, distinct: number, known: Map<string, number>}} Palette */

/** The first eight are easy to tell apart; the others are used when these are taken. @type {Palette} */
const TENANTS = { colours: 12, distinct: 8, known: new Map() };
/** Greys, which no tenant has. @type {Palette} */
const TYPES = { colours: 6, distinct: 6, known: new Map() };

/** @param {string} name */
function hash(name) {
  let at = 0;
  for (const letter of name) at = (at * 31 + letter.charCodeAt(0)) % 9973;
  return at;
}

/**
 * Give each new name a colour: by its hash, or the next free one, so that a few names always differ. All names
 * that are new at once are taken in alphabetical order.
 * @param {Palette} palette
 * @param {string[]} names
 */
function learn({ colours, distinct, known }, names) {
  for (const name of [...names].sort()) {
    if (known.has(name)) continue;
    const taken = new Set(known.values());
    let at = hash(name) % distinct;
    for (let tries = 1; tries <= colours && taken.has(at); tries += 1) {
      at = tries < distinct ? (at + 3) % distinct : tries % colours; // 3 has no factor in common with 8
    }
    known.set(name, at);
  }
}

/**
 * Names of tenants. Those of an answer must be given all at once, before the first is drawn.
 * @param {string[]} names
 */
export function learnTenants(names) {
  learn(TENANTS, names);
}

/** Tenants of another plane or user are no reason for a colour. */
export function forgetTenants() {
  TENANTS.known.clear();
}

/** The colour of a tenant, as a class "t0".."t11". @param {string} name */
export function tenantColour(name) {
  learn(TENANTS, [name]);
  return `t${TENANTS.known.get(name)}`;
}

/** The colours of GPU types, as custom properties "--y0".."--y5". @param {string[]} names */
export function typeColours(names) {
  learn(TYPES, names);
  return new Map(names.map((name) => [name, `--y${TYPES.known.get(name)}`]));
}
