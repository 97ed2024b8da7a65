#!/usr/bin/env node
// Takes part in a dialog without any code of dialogd's: docs/protocol.md in Node's standard library and flock(1).
//
//   node participant.mjs B 3002 /tmp/claude-dialog.md ['COMMAND']
//
// COMMAND thinks for it: the file on its standard input, the reply on its standard output. Without one it signs what
// lies on the table. It knows plain dialogs of two, and waits behind a mark that it does not know until the person has
// spoken. Of a reply it lifts one mark, `[AGREE: P1]` with nothing beside it; all else that is said stays text.
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import http from 'node:http'

const [ME, PORT, FILE, COMMAND] = process.argv.slice(2)
const sha = text => createHash('sha256').update(text).digest('hex').slice(0, 16)
const utf8 = bytes => Buffer.from(bytes, 'latin1').toString() // the file is read as latin1: a character is a byte

// -- Reading: from bytes to who owes a turn (protocol, sections 1 to 5 and 7) -----------------------------------------

const FRAME = /## (?:Turn (\d+)|Note) \xe2\x80\x94 .*\n<!-- dialogd by=(\S+).* bytes=(\d+) prev=\w* sha=(\w{16}) -->\n/g
const HEADING = /^##[ \t]+(?:turn[ \t]+\d|user[ \t\r]*$|note[ \t])/im
const TURN = /^[ \t]*[*_`]*turn[*_`]*[ \t]*:[*_` \t]*\S.*$/im
const BORDER = RegExp(`(?=${HEADING.source})|(?<=${TURN.source}\\n)`, 'im') // of what was typed by hand
const BLANK = /^\s*(?:-{3,}\s*)?$/
const MARK = /^\s*\[([A-Z_]+)(?: (P\d+))?(?:: (.*))?\]\s*$/
const END = /^(CONSENSUS_REACHED|DEADLOCK|DECIDED|MAX_TURNS_REACHED|STOPPED)$/
const HAND = /^(PAUSED|RESUMED|LIMIT|SKIP|RETRY|APPROVED|STEP|STRIKE|VETO|INVITE|LEAVE)$/
const UNKNOWN = /^(STEP|STRIKE|VETO|INVITE|LEAVE|ROUND)$/

function read() {
  const bytes = fs.readFileSync(FILE, 'latin1'), start = bytes.search(HEADING), text = utf8(bytes.slice(0, start))
  const key = (name, other) => RegExp(`^\\**${name}:\\**[ \\t]*(.+)$`, 'im').exec(text)?.[1].trim() ?? other
  const agents = key('Agents', 'A, B').split(',').map((agent, seat) => {
    const [, id, name, url] = /^\s*([\w-]+)(?:\s*=\s*([^(@]*))?(?:\([^)]*\)\s*)?(?:\s*@\s*(\S+))?/.exec(agent) ?? []
    return { id, name: name?.trim() || `Claude ${id}`, url: url ?? `http://localhost:${3001 + seat}` }
  })
  const dialog = { text: text.replaceAll('\r\n', '\n').trim(), id: key('Dialog'), max: parseInt(key('Max Turns', '20')),
    agents, number: 0, notes: 0, base: 0,
    longest: parseInt(key('Max Message', '10000').replaceAll(',', '')), owing: new Map() }
  let at = start
  for (const frame of bytes.matchAll(FRAME)) {
    if (frame.index < at) continue // it stands in the body of another
    bytes.slice(at, frame.index).split(BORDER).forEach(part => typed(dialog, part))
    at = framed(dialog, bytes, frame)
  }
  bytes.slice(at).split(BORDER).forEach(part => typed(dialog, part))
  return dialog
}

function framed(dialog, bytes, { 0: head, 1: number, 2: by, 3: size, 4: hash, index }) {
  const start = index + head.length, next = bytes.slice(start).search(/^## (?:Turn \d|Note \xe2)/m)
  const content = bytes.slice(start, start + Number(size)), seal = head.slice(0, head.lastIndexOf(' sha='))
  const isSound = content.length === Number(size) && sha(Buffer.from(seal + content, 'latin1')) === hash
  const lines = isSound ? utf8(content).replace(/\n+$/, '').split('\n') : [], marks = []
  const turn = lines.at(-1)?.startsWith('TURN: ') ? lines.pop().slice(6).split(', ') : undefined
  while (lines.at(-1) === '') lines.pop()
  while (MARK.test(lines.at(-1))) marks.unshift(MARK.exec(lines.pop()))
  take(dialog, { by, isTurn: number, number, turn, marks, body: lines.join('\n').trim(), hash })
  dialog.waits = isSound ? '' : 'damaged' // until somebody has written behind it
  return isSound ? start + content.length : next < 0 ? bytes.length : start + next
}

function typed(dialog, part) {
  const isCut = !/\n\s*$/.test(part), lines = utf8(part).split('\n').map(line => line.replace(/\r$/, ''))
  while (BLANK.test(lines[0])) lines.shift()
  while (BLANK.test(lines.at(-1))) lines.pop()
  if (!lines.length) return
  const passes = !isCut && TURN.test(lines.at(-1)), head = HEADING.test(lines[0]) ? lines[0] : ''
  const marks = lines.map(line => MARK.exec(line)).filter(mark => mark && (END.test(mark[1]) || HAND.test(mark[1])))
  const ends = !isCut && !passes && marks.some(([, name]) => END.test(name))
  const isHand = !isCut && HAND.test(MARK.exec(lines.at(-1))?.[1])
  const body = lines.slice(head ? 1 : 0, passes ? -1 : undefined).join('\n').trim(), hash = sha(lines.join('\n'))
  const isTurn = (passes || ends) && !isHand && !/note/i.test(head), turn = passes ? named(dialog, lines.at(-1)) : null
  take(dialog, { by: 'USER', isTurn, number: /\d+/.exec(head)?.[0], turn, marks, body, hash })
  dialog.waits = passes || ends || isHand ? '' : 'unfinished'
}

function named({ agents }, line) {
  const all = line.replace(/^[^:]*:|[*_`.@]/g, '').toLowerCase().split(/[,;&+]|\band\b/).map(one => one.trim())
  const found = agents.filter(({ id, name }) => [id, name, 'all'].some(one => all.includes(one.toLowerCase())))
  return found.length ? found.map(({ id }) => id) : [all.includes('any') ? 'ANY' : 'USER']
}

function take(dialog, { by, isTurn, number, turn, marks, body, hash }) { // what an entry changes
  const { owing } = dialog, end = turn ? undefined : marks.findLast(([, name]) => END.test(name))?.[1]
  if (isTurn) [dialog.number, dialog.notes] = [Math.max(number ?? 0, dialog.number + 1), 0]
  else dialog.notes++
  dialog.id ??= sha(`${dialog.text}\n${body}`).slice(0, 12)
  if (isTurn && by !== 'USER') {
    for (const who of [by, 'ANY']) owing.delete(who)
    dialog.hasSpoken = true
  } else if (isTurn) {
    owing.clear()
    dialog.table = dialog.unknown = null
    if (dialog.ended && !end) [dialog.ended, dialog.base] = ['', dialog.number - 1]
  } else if (turn && by === 'USER') owing.delete('USER')
  for (const [, name, ref, value = ''] of marks) {
    const [who, count] = value.split(' ')
    if (name === 'CONSENSUS_PROPOSED') dialog.table = { ref, signed: { [by]: dialog.number } }
    if (name === 'AGREE' && dialog.table?.ref === who) dialog.table.signed[by] ??= dialog.number
    if (name === 'OBJECTION') dialog.table = null
    if (name === 'PAUSED' || name === 'RESUMED') dialog.paused = name === 'PAUSED'
    if (name === 'LIMIT' && who === 'max_turns') dialog.max = parseInt(count)
    if (/^(AGENT_ERROR|SKIP|RETRY)$/.test(name)) owing.delete(who)
    if (UNKNOWN.test(name)) dialog.unknown = name
  }
  const re = isTurn ? `${dialog.number}` : `${dialog.number}.${dialog.notes}`
  if (end) dialog.ended = end
  if (dialog.ended) owing.clear()
  else for (const who of turn ?? []) owing.has(who) || owing.set(who, { re, key: `${re} ${hash}` })
  dialog.prev = hash
}

const debtOf = ({ owing }) => owing.get(ME) ?? owing.get('ANY')

// -- Writing: a reply as an entry (sections 3.5, 5 and 6) -------------------------------------------------------------

const STRUCTURE = RegExp('^[ \\t]*\\\\*(?:#{1,6}[ \\t]*(?:turn|note|user|system)(?![\\p{L}\\p{N}_])' +
  '|[*_`>#~ \\t-]*turn[*_` \\t]*:|<!--[ \\t]*dialogd|[*_`~]{0,4}\\[[ \\t]*[A-Z]{2})', 'iu')

function compose(dialog, reply, ms) {
  const { table, agents, owing, longest } = dialog, debt = debtOf(dialog), number = dialog.number + 1
  const signed = { ...table?.signed, [ME]: number }
  const said = [...reply.replaceAll('\r\n', '\n').replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]/g, '\ufffd').trim()]
  const lines = said.slice(0, longest).join('').split('\n')
  const marks = table && reply.trim() === `[AGREE: ${table.ref}]` ? [reply.trim()] : [] // words beside a yes make it none
  let body = lines.map(line => (STRUCTURE.test(line) ? line.replace(/^[ \t]*/, '$&\\') : line)).join('\n'), last = ''
  if (said.length > longest) body += `\n\n*(${said.length - longest} more characters were cut off)*`
  if (marks.length) body = ''
  if (marks.length && agents.every(({ id }) => signed[id])) {
    const who = `signed by ${Object.entries(signed).map(([id, turn]) => `${id} in turn ${turn}`).join(', ')}`
    body = `---\n\n**Total turns:** ${number}\n**Duration:** unknown\n**Outcome:** consensus on ${table.ref}, ${who}`
    marks.push(`[DECISION ${table.ref}: approved | mutual | ${who} | both signed this very text]`, '[CONSENSUS_REACHED]')
  } else if (number - dialog.base >= dialog.max) marks.push('[MAX_TURNS_REACHED]')
  else {
    const rest = [...owing.keys()].filter(who => who !== ME && who !== 'ANY')
    last = `TURN: ${rest.length ? rest.join(', ') : agents.find(({ id }) => id !== ME).id}`
  }
  const content = `\n${[body, marks.join('\n'), last].filter(Boolean).join('\n\n')}\n`
  const seal = `## Turn ${number} — ${agents.find(({ id }) => id === ME).name}\n<!-- dialogd by=${ME}` +
    ` re=${debt.re} at=${new Date().toISOString().slice(0, 19)}Z ms=${ms}` +
    ` bytes=${Buffer.byteLength(content)} prev=${dialog.prev}`
  return `\n---\n\n${seal} sha=${sha(seal + content)} -->\n${content}`
}

// -- One turn: think; lock, read, compare, append, flush, unlock; tell ------------------------------------------------

let call = null // the debt that is being thought about, and the child that thinks
let isStarted = false // somebody has said that it may begin
const kept = {} // replies that could not be written yet, by their debt: none is asked for twice

function think({ table, number }) {
  if (!COMMAND) return table && !table.signed[ME] ? `[AGREE: ${table.ref}]` : `I have read turn ${number}.`
  return new Promise(done => {
    const child = call.child = spawn('/bin/sh', ['-c', COMMAND], { stdio: ['pipe', 'pipe', 'inherit'] }), said = []
    child.stdout.on('data', data => said.push(data))
    child.on('close', () => done(Buffer.concat(said).toString().trim() || 'I have nothing to say.'))
    child.stdin.on('error', () => {}).end(fs.readFileSync(FILE))
  })
}

function lock() { // flock(1) holds it for as long as its standard input is open
  fs.closeSync(fs.openSync(`${FILE}.lock`, 'a', 0o600))
  const child = spawn('flock', [`${FILE}.lock`, 'sh', '-c', 'echo; exec cat'], { stdio: ['pipe', 'pipe', 'inherit'] })
  return new Promise(done => child.stdout.once('data', () => done(() => child.stdin.end())))
}

function append(text) {
  const file = fs.openSync(FILE, 'a+')
  fs.writeSync(file, text)
  fs.fsyncSync(file)
  const { ino } = fs.fstatSync(file)
  fs.closeSync(file)
  return ino === fs.statSync(FILE).ino // else an editor has put another file in its place meanwhile
}

function status(dialog) {
  const isMine = dialog.agents.length === 2 && dialog.agents.some(({ id }) => id === ME)
  if (dialog.ended) return dialog.ended.replace('_REACHED', '').toLowerCase()
  if (!isMine || /^##[ \t]+Setup/im.test(dialog.text)) return 'unknown_rules'
  if (dialog.paused || dialog.waits || dialog.unknown) return dialog.paused ? 'paused' : dialog.waits || 'unknown_mark'
  if (debtOf(dialog)) return isStarted || dialog.hasSpoken ? 'accepted' : 'not_started'
  return dialog.owing.has('USER') ? 'waiting_for_user' : 'not_my_turn'
}

function look() {
  if (!fs.existsSync(FILE)) return 'no_dialog'
  const dialog = read(), word = status(dialog)
  if (call && call.key !== debtOf(dialog)?.key) call.child?.kill() // the person spoke: nobody waits for this reply
  if (call) return 'busy'
  if (word === 'accepted') turn(dialog, debtOf(dialog).key)
  return word
}

async function turn(dialog, key) {
  call = { key }
  const began = Date.now(), reply = kept[key] ??= await think(dialog)
  const unlock = await lock(), now = read()
  const isStill = debtOf(now)?.key === key && !now.waits
  const isDone = isStill && append(compose(now, reply, Date.now() - began))
  unlock()
  if (isDone) tell(dialog)
  call = null
  look()
}

function tell({ agents, id: dialog }) {
  const { url } = agents.find(({ id }) => id !== ME), body = JSON.stringify({ from: ME, file: FILE, dialog })
  http.request(`${url}/notify`, { method: 'POST', timeout: 1000 }).on('error', () => {}).end(body)
}

// -- HTTP -------------------------------------------------------------------------------------------------------------

function refusal({ method, url, headers }, said, dialog) { // status, reason, what to do; undefined where it is none
  const { host, origin = `http://${host}`, 'sec-fetch-site': site = 'none' } = headers
  if (![`localhost:${PORT}`, `127.0.0.1:${PORT}`].includes(host)) return [403, 'another host is meant', 'use localhost']
  if (origin !== `http://${host}`) return [403, 'a page of another origin sent this', 'use curl']
  if (!['none', 'same-origin'].includes(site)) return [403, 'another site sent this', 'use curl']
  if (!['GET /health', 'POST /notify'].includes(`${method} ${url}`)) return [404, 'no such route', 'POST /notify']
  if (typeof said !== 'object' || said === null) return [400, 'the body is no JSON object', 'send no body at all']
  const isOther = (said.file && said.file !== FILE) || (said.dialog && said.dialog !== dialog?.id)
  if (isOther) return [409, `${ME} is at ${FILE}`, 'ask who is at that dialog']
}

http.createServer(async (request, response) => {
  let body = '', said = null
  for await (const data of request) if ((body += data).length > 1e6) return request.destroy()
  try { said = JSON.parse(body || '{}') } catch { /* then it is refused */ }
  response.setHeader('content-type', 'application/json')
  const answer = (code, facts) => response.writeHead(code).end(JSON.stringify(facts))
  const dialog = fs.existsSync(FILE) ? read() : null, [code, detail, fix] = refusal(request, said, dialog) ?? []
  if (code) return answer(code, { type: 'about:blank', title: http.STATUS_CODES[code], status: code, detail, fix })
  if (request.method === 'GET') {
    const working_on = call && { turn: dialog.number + 1, seconds: 0 }
    return answer(200, { status: 'ok', id: ME, pid: process.pid, file: FILE, dialog: dialog?.id ?? null, working_on })
  }
  if (!said.from || said.from === 'USER' || said.start) isStarted = true
  const word = look()
  answer(word === 'accepted' ? 202 : 200, { status: word })
}).listen(PORT, '127.0.0.1')

setInterval(look, 500) // a notification is a hint: one that was lost is made up for
