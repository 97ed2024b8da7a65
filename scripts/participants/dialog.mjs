// The dialog file: from bytes to what they come to, and from a reply to its entry. docs/protocol.md, sections 1 to 7.
// It knows plain dialogs (those without a Setup), and has no code of dialogd's.
import { createHash } from 'node:crypto'

const OUTCOMES = 'CONSENSUS_REACHED DEADLOCK DECIDED MAX_TURNS_REACHED STOPPED'.split(' ')
const HAND = 'PAUSED RESUMED STEP LIMIT SKIP RETRY STRIKE VETO INVITE LEAVE APPROVED'.split(' ')
const CONTRIBUTIONS = 'PROPOSAL OBJECTION CONCEDE QUESTION EVIDENCE IDEA CRITIQUE SYNTHESIS'.split(' ')
const sha = text => createHash('sha256').update(text).digest('hex').slice(0, 16)
const utf8 = bytes => Buffer.from(bytes, 'latin1').toString() // the file is read as latin1: a character is a byte

// -- Reading: bytes to entries (sections 1 to 4) ----------------------------------------------------------------------

const FRAMED = RegExp('## (?:Turn (\\d{1,9})|Note) \xe2\x80\x94 [^\\n]*\\n<!-- dialogd by=(\\S+)[^\\n]*?' +
  ' bytes=(\\d{1,9}) prev=[0-9a-f]* sha=([0-9a-f]{16}) -->\\n', 'g')
const HEADING = /^##[ \t]+(?:turn[ \t]+(\d{1,9})|user[ \t\r]*$|note[ \t]+(?:[:-]|\xe2\x80[\x93\x94]))/i
const TURN = /^[ \t]*[*_`]*turn[*_`]*[ \t]*:[*_` \t]*(\S.*)$/i
const BLANK = /^[ \t\r]*(?:-{3,}[ \t\r]*)?$/
const mark = line => {
  const found = /^\[([A-Z][A-Z_]*)(?: (P\d{1,6}))?(?:: ([^]*))?\]$/.exec(line)
  return found && { name: found[1], ref: found[2], value: found[3] ?? '' }
}

export function read(data) {
  const bytes = data.toString('latin1')
  const start = bytes.search(/^##[ \t]+(?:turn[ \t]+\d|user[ \t\r]*$|note[ \t])/im)
  const dialog = header(utf8(bytes.slice(0, start)).replaceAll('\r\n', '\n'))
  let at = start
  for (const frame of bytes.matchAll(FRAMED)) {
    if (frame.index < at) continue // it stands in the body of another
    byHand(dialog, bytes.slice(at, frame.index), false)
    at = framed(dialog, bytes, frame)
  }
  byHand(dialog, bytes.slice(at), true)
  return dialog
}

function header(text) {
  const key = (name, other) => RegExp(`^\\**${name}:\\**[ \\t]*(.+)$`, 'im').exec(text)?.[1].trim() ?? other
  const number = (name, other) => parseInt(key(name, other).replaceAll(',', ''))
  const agents = key('Agents', 'A, B').match(/(?:\([^()]*\)|[^,])+/g).map((part, seat) => {
    const [, id, name, url] = /^\s*([\w-]+)\s*(?:=\s*([^(@]*))?(?:\([^)]*\)\s*)?(?:@\s*(\S+))?/.exec(part) ?? []
    return { id, name: name?.trim() || `Claude ${id}`, url: url ?? `http://localhost:${3001 + seat}` }
  })
  return { text, agents, id: key('Dialog'), max: number('Max Turns', '20'), longest: number('Max Message', '10000'),
    hasRules: /^##[ \t]+Setup/im.test(text), number: 0, notes: 0, base: 0, prev: '', owing: new Map(), missed: {},
    hasSpoken: false, table: null, proposals: 0, ended: '', paused: false, waits: '' }
}

function framed(dialog, bytes, { 0: head, 1: number, 2: by, 3: size, 4: hash, index }) {
  const start = index + head.length
  let end = start + Number(size)
  const seal = head.slice(0, head.lastIndexOf(' sha='))
  const isSound = end <= bytes.length && sha(Buffer.from(seal + bytes.slice(start, end), 'latin1')) === hash
  const next = bytes.slice(start).search(/^## (?:Turn \d|Note \xe2)/m)
  if (!isSound) end = next < 0 ? bytes.length : start + next
  const lines = utf8(bytes.slice(start, end)).replace(/(?:\n|\n-{3,})*$/, '').split('\n')
  const turn = /^TURN: (\w[\w, -]*)$/.exec(lines.at(-1))?.[1].split(', ')
  if (turn) lines.pop()
  while (lines.at(-1) === '') lines.pop()
  const marks = []
  while (lines.length && mark(lines.at(-1))) marks.unshift(mark(lines.pop()))
  const hasEnd = number ? turn || marks.some(one => OUTCOMES.includes(one.name)) : end - start >= size
  const isWhole = isSound || (bytes[end - 1] === '\n' && hasEnd)
  const body = lines.join('\n').trim()
  dialog.waits = isWhole ? '' : 'damaged'
  if (isWhole) take(dialog, { by, number: number && Math.max(number, dialog.number + 1), turn, marks, body, hash })
  else dialog.notes++
  dialog.prev = hash
  return end
}

function byHand(dialog, region, isLast) { // entries begin at a heading, and behind a TURN line
  const lines = region.split('\n')
  let part = []
  for (const line of [...lines, null]) {
    const isNext = line === null || HEADING.test(line) || (!BLANK.test(line) && part.some(one => TURN.test(one)))
    if (part.length && isNext) {
      const isEnd = isLast && line === null, isCut = isEnd && !BLANK.test(lines.at(-1)) // its newline is not there yet
      typed(dialog, part.map(one => utf8(one).replace(/\r$/, '')), HEADING.exec(part[0]), isEnd, isCut)
      part = []
    }
    if (line !== null && (part.length || !BLANK.test(line))) part.push(line)
  }
}

function typed(dialog, lines, heading, isEnd, isCut) {
  while (BLANK.test(lines.at(-1))) lines.pop()
  const passes = isCut ? null : TURN.exec(lines.at(-1))
  const known = [...OUTCOMES, ...HAND, 'PROPOSAL']
  const marks = lines.map(line => mark(line.trim())).filter(one => one && known.includes(one.name))
  const isHand = !isCut && HAND.includes(mark(lines.at(-1).trim())?.name)
  const ends = !passes && marks.some(one => OUTCOMES.includes(one.name))
  const isTurn = (passes || ends) && !isHand && !/note/i.test(heading?.[0])
  const hash = sha(lines.join('\n'))
  const body = lines.slice(heading ? 1 : 0, passes ? -1 : undefined).join('\n').trim()
  dialog.waits = isEnd && !passes && !ends && !isHand ? 'unfinished' : ''
  take(dialog, { by: 'USER', number: isTurn && Math.max(heading?.[1] ?? 0, dialog.number + 1), marks, body, hash,
    turn: passes ? named(dialog, passes[1]) : undefined })
  dialog.prev = hash
}

function named({ agents }, text) {
  const all = text.split(/[,;&+]|\band\b/).map(name => name.replace(/[*_`.@]/g, '').trim().toLowerCase())
  const found = agents.filter(({ id, name }) => [id, name, 'all'].some(one => all.includes(one.toLowerCase())))
  return found.length ? found.map(({ id }) => id) : [all.includes('any') ? 'ANY' : 'USER']
}

// -- The fold: what the entries come to (sections 3.4, 5 and 7) -------------------------------------------------------

function take(dialog, { by, number, turn, marks, body, hash }) {
  const { owing, missed } = dialog
  if (number) [dialog.number, dialog.notes] = [number, 0]
  else dialog.notes++
  dialog.id ??= sha(`${dialog.text.trim()}\n${body}`).slice(0, 12)
  const re = number ? `${number}` : `${dialog.number}.${dialog.notes}`
  const open = who => owing.has(who) || owing.set(who, { re, hash })
  const end = turn ? undefined : marks.findLast(one => OUTCOMES.includes(one.name))
  if (by === 'USER' && number) {
    if (dialog.ended && !end) [dialog.ended, dialog.base] = ['', number - 1]
    owing.clear()
    ;[dialog.table, dialog.missed] = [null, {}]
  } else if (by === 'USER') {
    if (turn) owing.delete('USER')
  } else if (number) {
    for (const who of [by, 'ANY']) owing.delete(who)
    delete missed[by]
    dialog.hasSpoken = true
  }
  for (const { name, ref, value } of marks) {
    const who = value.split(' ')[0]
    if (/PROPOS/.test(name)) dialog.proposals = Number(ref?.slice(1) ?? dialog.proposals + 1)
    if (name === 'CONSENSUS_PROPOSED') dialog.table = { ref, at: number, signed: { [by]: number } }
    if (name === 'AGREE' && dialog.table?.ref === value.split(' ')[0]) dialog.table.signed[by] ??= number
    if (name === 'OBJECTION') dialog.table = null
    if (name === 'PAUSED' || name === 'RESUMED') dialog.paused = name === 'PAUSED'
    if (name === 'LIMIT' && who === 'max_turns') dialog.max = parseInt(value.split(' ')[1])
    if (name === 'AGENT_ERROR' || name === 'STALLED') missed[who] = (missed[who] ?? 0) + 1
    if (name === 'AGENT_ERROR' || (name === 'STALLED' && turn)) owing.delete(who)
    if (['SKIP', 'RETRY', 'LEAVE'].includes(name)) for (const one of [who, 'USER']) owing.delete(one)
    if (name === 'RETRY') open(who)
    if (name === 'LEAVE') dialog.agents = dialog.agents.filter(({ id }) => id !== who)
    if (name === 'ROUND' && who === 'closing') for (const one of ['USER', 'ANY']) owing.delete(one)
  }
  if (end) dialog.ended = end.name
  if (dialog.ended) owing.clear()
  else for (const who of turn ?? []) open(who)
}

// The debt that this agent may pay, and what makes it that very one.
export const debtOf = (dialog, me) => dialog.owing.get(me) ?? dialog.owing.get('ANY')
export const keyOf = (dialog, me) => { const debt = debtOf(dialog, me); return debt && `${debt.re} ${debt.hash}` }

// -- Writing: a reply to an entry (sections 3.5, 4.2, 5 and 6) --------------------------------------------------------

const STRUCTURE = RegExp('^[ \\t]*\\\\*(?:#{1,6}[ \\t]*(?:turn|note|user|system)(?![\\p{L}\\p{N}_])' +
  '|[*_`>#~ \\t-]*turn[*_` \\t]*:|<!--[ \\t]*dialogd(?![\\p{L}\\p{N}_]))', 'iu')
const MARKLIKE = RegExp('^[ \\t]*\\\\*[*_`~]{0,4}\\[[ \\t]*[A-Z][A-Z_]+(?:[ \\t]+[Pp]\\d{1,6})?[ \\t]*(?::[^]*)?\\]' +
  '[ \\t]*(?:[*_`~.,;:!]{1,6}[ \\t]*)?$')
const escape = line => (STRUCTURE.test(line) || MARKLIKE.test(line) ? line.replace(/^[ \t]*/, '$&\\') : line)

// The entry, and under which name the whole text is to be kept beside the file where it is too long for that.
export function compose(dialog, me, reply, ms, folder) {
  const debt = debtOf(dialog, me), number = dialog.number + 1, at = new Date().toISOString().slice(0, 19) + 'Z'
  const clean = reply.replaceAll('\r\n', '\n').replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]/g, '\ufffd')
  const lines = clean.trimEnd().split('\n')
  const marks = []
  while (lines.length && (lines.at(-1) === '' || mark(lines.at(-1)))) { // the closing block; nothing else is a mark
    const line = lines.pop(), { name, value } = mark(line) ?? {}
    const signs = name === 'AGREE' && dialog.table && value === dialog.table.ref
    if (CONTRIBUTIONS.includes(name) || name === 'PASS') marks.unshift(line)
    else if (signs && !reply.replace(line, '').trim()) marks.unshift(line) // a yes with words beside it is no yes
    else if (line) marks.push(`[REFUSED: ${name} ${value.replaceAll('|', '/').slice(0, 60)} | it does not count here]`)
  }
  const text = marks.map(line => line.replace(/^\[PROPOSAL: /, () => `[PROPOSAL P${++dialog.proposals}: `))
  let body = lines.join('\n').replace(/^\n+/, ''), last = '', whole = null
  if ([...body].length > dialog.longest) {
    whole = { name: `${sha(body)}.md`, text: body }
    const kept = [...body].slice(0, dialog.longest), more = [...body].length - dialog.longest
    body = `${kept.join('')}\n\n*(${more} more characters: [the whole text](${folder}/${whole.name}))*`
  }
  const signed = { ...dialog.table?.signed, [me]: number }, { ref } = dialog.table ?? {}
  if (text.includes(`[AGREE: ${ref}]`) && dialog.agents.every(({ id }) => signed[id])) {
    const who = `signed by ${Object.entries(signed).map(([id, turn]) => `${id} in turn ${turn}`).join(', ')}`
    body += `\n\n---\n\n**Total turns:** ${number}\n**Duration:** unknown\n**Outcome:** consensus on ${ref}, ${who}`
    text.push(`[DECISION ${ref}: approved | mutual | ${who} | everybody signed this very text]`, '[CONSENSUS_REACHED]')
  } else if (number - dialog.base >= dialog.max) text.push('[MAX_TURNS_REACHED]')
  else last = `TURN: ${next(dialog, me).join(', ')}`
  const parts = [body.trim().split('\n').map(escape).join('\n'), text.join('\n'), last].filter(Boolean)
  const content = `\n${parts.join('\n\n')}\n`
  const { name } = dialog.agents.find(({ id }) => id === me)
  const seal = `## Turn ${number} — ${name}\n<!-- dialogd by=${me} re=${debt.re} at=${at} ms=${ms}` +
    ` bytes=${Buffer.byteLength(content)} prev=${dialog.prev}`
  return { entry: `\n---\n\n${seal} sha=${sha(seal + content)} -->\n${content}`, whole }
}

function next({ agents, owing, missed }, me) {
  const rest = [...owing.keys()].filter(who => who !== me && who !== 'ANY')
  if (rest.length) return rest
  const seat = agents.findIndex(({ id }) => id === me)
  const others = [...agents.slice(seat + 1), ...agents.slice(0, seat)].filter(({ id }) => !(missed[id] > 1))
  return [others[0]?.id ?? 'USER']
}
