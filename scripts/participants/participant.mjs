#!/usr/bin/env node
// Takes part in a dialog without any code of dialogd: docs/protocol.md in Node's standard library and flock(1).
//
//   node participant.mjs B 3002 /tmp/claude-dialog.md ['COMMAND']
//
// COMMAND thinks for it: the dialog on its standard input, the reply on its standard output. Without one it signs
// whatever text lies on the table.
import { spawn } from 'node:child_process'
import fs from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import { compose, debtOf, keyOf, read } from './dialog.mjs'

const [ME, PORT, FILE, COMMAND] = process.argv.slice(2)

// -- One turn: think, then lock, read, compare, append, flush, unlock; then tell --------------------------------------

let call = null // the child that thinks, and the debt that it thinks about
let isStarted = false // somebody has said that it may begin
const kept = new Map() // replies that could not be written yet, by their debt: none is asked for twice

function think(dialog) {
  const { table } = dialog
  const signs = table && !table.signed[ME]
  if (!COMMAND) return signs ? `[AGREE: ${table.ref}]` : `I have read turn ${dialog.number}.`
  return new Promise(done => {
    const child = spawn('/bin/sh', ['-c', COMMAND], { stdio: ['pipe', 'pipe', 'inherit'] })
    const said = []
    child.stdout.on('data', data => said.push(data))
    child.on('close', () => done(Buffer.concat(said).toString().trim() || '[PASS]'))
    child.stdin.on('error', () => {}).end(fs.readFileSync(FILE))
    call.child = child
  })
}

function lock() { // flock(1) holds it for as long as its standard input is open
  fs.closeSync(fs.openSync(`${FILE}.lock`, 'a', 0o600))
  const child = spawn('flock', [`${FILE}.lock`, 'sh', '-c', 'echo; exec cat'], { stdio: ['pipe', 'pipe', 'inherit'] })
  return new Promise(done => child.stdout.once('data', () => done(() => child.stdin.end())))
}

function append(text) {
  const file = fs.openSync(FILE, 'a+')
  try {
    fs.writeSync(file, text)
    fs.fsyncSync(file)
    return fs.fstatSync(file).ino === fs.statSync(FILE).ino // else an editor has saved another file meanwhile
  } finally {
    fs.closeSync(file)
  }
}

function keep({ name, text }) { // the whole of a text that was too long
  fs.mkdirSync(`${FILE}.d`, { recursive: true, mode: 0o700 })
  fs.writeFileSync(`${FILE}.d/${name}`, text)
}

function status(dialog) {
  if (dialog.ended) return dialog.ended.replace('_REACHED', '').toLowerCase()
  if (dialog.hasRules || !dialog.agents.some(({ id }) => id === ME)) return 'unknown_agent'
  if (dialog.paused) return 'paused'
  if (dialog.waits) return dialog.waits
  if (debtOf(dialog, ME)) return isStarted || dialog.hasSpoken ? 'accepted' : 'not_started'
  return dialog.owing.has('USER') ? 'waiting_for_user' : 'not_my_turn'
}

function look() {
  if (!fs.existsSync(FILE)) return 'no_dialog'
  const dialog = read(fs.readFileSync(FILE)), key = keyOf(dialog, ME)
  if (call && call.key !== key) call.child?.kill() // the person spoke: nobody waits for this reply any more
  if (call) return 'busy'
  if (status(dialog) === 'accepted') turn(dialog, key)
  return status(dialog)
}

async function turn(dialog, key) {
  call = { key }
  try {
    const began = Date.now(), reply = kept.get(key) ?? await think(dialog)
    kept.set(key, reply)
    const unlock = await lock()
    try {
      const now = read(fs.readFileSync(FILE))
      if (keyOf(now, ME) !== key || now.waits) return
      const { entry, whole } = compose(now, ME, reply, Date.now() - began, `${path.basename(FILE)}.d`)
      if (whole) keep(whole)
      if (!append(entry)) return
      kept.delete(key)
    } finally {
      unlock()
    }
    tell(dialog)
  } finally {
    call = null
    look()
  }
}

function tell({ agents, id }) {
  const body = JSON.stringify({ from: ME, file: FILE, dialog: id })
  for (const peer of agents.filter(agent => agent.id !== ME)) {
    http.request(`${peer.url}/notify`, { method: 'POST', timeout: 1000 }).on('error', () => {}).end(body)
  }
}

// -- HTTP -------------------------------------------------------------------------------------------------------------

// Why a request is refused: status, reason, what to do; undefined where it is not.
function refusal({ method, url, headers }, said, dialog) {
  const { host, origin = `http://${host}`, 'sec-fetch-site': site = 'none' } = headers
  const hosts = [`localhost:${PORT}`, `127.0.0.1:${PORT}`], routes = ['GET /health', 'POST /notify']
  if (!hosts.includes(host)) return [403, 'another host is meant', `call http://${hosts[0]}`]
  if (origin !== `http://${host}`) return [403, 'a page of another origin sent this', 'use curl']
  if (!['none', 'same-origin'].includes(site)) return [403, 'another site sent this', 'use curl']
  if (!routes.includes(`${method} ${url}`)) return [404, 'there is no such route', routes.join(', ')]
  if (typeof said !== 'object' || said === null) return [400, 'the body is no JSON object', 'send no body at all']
  const isOther = (said.file && said.file !== FILE) || (said.dialog && said.dialog !== dialog?.id)
  if (isOther) return [409, `${ME} is at ${FILE}`, 'ask who is at that dialog']
}

function parsed(text) {
  try { return JSON.parse(text || '{}') } catch { return null }
}

http.createServer(async (request, response) => {
  const answer = (code, facts) => {
    response.writeHead(code, { 'content-type': 'application/json' }).end(JSON.stringify(facts))
  }
  let body = ''
  for await (const data of request) if ((body += data).length > 1e6) return request.destroy()
  const dialog = fs.existsSync(FILE) ? read(fs.readFileSync(FILE)) : null
  const said = parsed(body), no = refusal(request, said, dialog)
  if (no) {
    const [status, detail, fix] = no
    return answer(status, { type: 'about:blank', title: http.STATUS_CODES[status], status, detail, fix })
  }
  if (request.method === 'GET') {
    return answer(200, { status: 'ok', id: ME, port: Number(PORT), pid: process.pid, file: FILE,
      dialog: dialog?.id ?? null, turn: dialog?.number ?? 0, turn_of: [...dialog?.owing.keys() ?? []],
      outcome: dialog?.ended || null, working_on: call && { turn: dialog.number + 1, seconds: 0 } })
  }
  if (!said.from || said.from === 'USER' || said.start) isStarted = true
  const word = look()
  answer(word === 'accepted' ? 202 : 200, { status: word })
}).listen(PORT, '127.0.0.1')

;(function poll() { // a notification is a hint: one that was lost is made up for
  look()
  setTimeout(poll, 500)
})()
