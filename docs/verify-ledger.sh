#!/bin/sh
# Verify a ledger of agent-rft with Git, ssh-keygen and the tools of any POSIX system, and with
# nothing of agent-rft itself:
#
#     verify-ledger.sh [REPOSITORY [REF [GENESIS]]]
#
# REPOSITORY is this folder by default, REF is refs/rft/ledger. GENESIS is the SHA-256 of the entry
# that the ledger must begin with, or was last restarted with; rft.yaml holds it as
# `genesis`. Take it from somewhere that whoever wrote the ledger cannot write to: without it, a whole
# other ledger verifies as well.
#
# It prints a line per entry and then OK; or the first thing that is wrong, and exits with 1.
# Nothing is written but a temporary folder. docs/ledger.md says what the result proves.
#
# The script has two halves, joined by a pipe:
#
#     facts   reads each commit, checks every hash and every signature, and prints what the entry
#             says as lines of `path TAB value`, such as `entry/act/kind TAB "approval"`
#     judge   replays these facts from the first entry on, and decides whether each may stand: who
#             held which role and which key, what was approved, in which order
#
# An entry is judged by the people and rules that the entries before it made; so the judge makes
# them again, from the changes alone, and policy.yaml must say the same.
set -eu
LC_ALL=C
GIT_NO_REPLACE_OBJECTS=1
GIT_NO_LAZY_FETCH=1
export LC_ALL GIT_NO_REPLACE_OBJECTS GIT_NO_LAZY_FETCH
unset GIT_DIR GIT_WORK_TREE GIT_OBJECT_DIRECTORY GIT_NAMESPACE CDPATH

repository=${1:-.}
ref=${2:-refs/rft/ledger}
genesis=${3:-}

case $repository in -h | --help) sed -n '2,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0"; exit 0 ;; esac
for tool in git ssh-keygen awk sed grep; do
    command -v "$tool" >/dev/null || { echo "$tool is not installed." >&2; exit 1; }
done
sha256() { if command -v sha256sum >/dev/null; then sha256sum -- "$@"; else shasum -a 256 -- "$@"; fi; }
repository=$(cd -- "$repository" && pwd)
git() { command git -C "$repository" "$@"; }
head=$(git rev-parse --verify --quiet "$ref") || {
    echo "$repository has no $ref. Fetch it: git fetch REMOTE rft-ledger:refs/rft/ledger" >&2
    exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
cd "$scratch"

# == facts =========================================================================================
fact() { printf '%s\t%s\n' "$1" "$2"; }
wrong() { fact wrong "$(printf '%s' "$1" | tr '\t\n' '  ')"; exit 0; }

# flatten PREFIX FILE: print each value of a canonical JSON file, with its path.
#
# A string stays as the file has it, in its quotes and with its escapes. So a string never looks
# like a number or null, and none holds a tab, a newline or a bare quote: whatever a reason says, it
# is one value on one line. Canonical JSON has its keys in order, each once, and no blanks.
flatten() {
    tr -d '\000-\037' <"$2" | cmp -s - "$2" || return 1
    awk -v prefix="$1" '
        function take(pattern) {  # the next token, if it is such a one
            if (!match(rest, pattern)) return 0
            token = substr(rest, 1, RLENGTH)
            rest = substr(rest, RLENGTH + 1)
            return 1
        }
        function value(path,    key, last, count) {
            if (take("^\"([^\"\\\\]|\\\\.)*\"") ||
                take("^(true|false|null|-?(0|[1-9][0-9]*)([.][0-9]+)?(e[-+]?[0-9]+)?)"))
                print path "\t" token
            else if (take("^[[]")) {
                if (take("^[]]")) return
                do value(path "/" count++); while (take("^,"))
                if (!take("^[]]")) exit failed = 1
            } else if (take("^[{]")) {
                if (take("^[}]")) return
                last = ""
                do {
                    if (!take("^\"[A-Za-z0-9_.-]+\":")) exit failed = 1
                    key = substr(token, 2, length(token) - 3)
                    if (key "" <= last "") exit failed = 1
                    last = key
                    value(path "/" key)
                } while (take("^,"))
                if (!take("^[}]")) exit failed = 1
            } else exit failed = 1
        }
        { rest = $0; value(prefix) }
        END { exit failed || rest != "" || NR != 1 }
    ' "$2"
}

# of PATH: the value at a path of the flattened entry, a string without its quotes.
of() { awk -F '\t' -v path="$1" '$1 == path { gsub(/^"|"$/, "", $2); print $2 }' flat; }

# signed_by NAMESPACE SIGNATURE DATA: verify a signature, and print the fingerprint of its key.
#
# Any key that was ever enrolled verifies here. Whose it was at the time, and what they might do, is
# for the judge. A name is asked for because ssh-keygen wants one.
signed_by() {
    grep " namespaces=\"$1\" " files/allowed_signers >signers || return 1
    name=$(ssh-keygen -Y find-principals -s "$2" -f signers 2>/dev/null | sed 1q)
    ssh-keygen -Y verify -f signers -I "${name:-nobody}" -n "$1" -s "$2" <"$3" 2>/dev/null |
        sed -n "s/^Good \"$1\" signature for .* key \(SHA256:[A-Za-z0-9+/]*\)\$/\1/p" | grep .
}

# enrol NAMESPACE NAME KEY: what allowed_signers must be once this entry has added a key.
enrol() {
    case $2 in '' | *[!a-z0-9._@+-]*) return 1 ;; esac
    case $3 in '' | *[!A-Za-z0-9@.+/=\ -]*) return 1 ;; esac
    printf '%s\n' "$3" | ssh-keygen -lf - 2>/dev/null | awk '{ print "new_key\t" $2 }' | grep SHA256: || return 1
    line="$2 namespaces=\"$1\" $3"
    grep -qxF -- "$line" expected || printf '%s\n' "$line" >>expected
}

facts() {
    : >before_signers
    : >before_policy
    before=
    commits=$(git rev-list --first-parent --reverse "$head") ||
        wrong "commits of the chain are missing, or their bytes were changed"
    for commit in $commits; do
        read_commit
        read_entry
        before=$commit
        cp files/allowed_signers before_signers
        cp files/policy.yaml before_policy
    done
    fact finished "$commit"
}

# The commit: its own hash, who signed it, and that it stands on the one before.
read_commit() {
    rm -rf payload signature parents flat files
    mkdir files
    : >parents
    git cat-file commit "$commit" >raw || wrong "commit $commit is missing or unreadable"
    [ "$(git hash-object -t commit --stdin <raw)" = "$commit" ] ||
        wrong "commit $commit is not what its name says: its bytes were changed"
    # What was signed is the commit without its signature.
    awk '
        !text && /^gpgsig / { signatures++; inside = 1; print substr($0, 8) >"signature"; next }
        !text && inside && /^ / { print substr($0, 2) >"signature"; next }
        { inside = 0; print >"payload" }
        !text && /^parent / { print $2 >"parents" }
        !text && $0 == "" { text = 1 }
        !text && !/^(tree|parent|author|committer) / { exit other = 1 }
        END { exit other || signatures != 1 }
    ' raw || wrong "commit $commit is not signed by a machine, or has lines that no entry has"
    [ "$(sed 1q parents)" = "$before" ] ||
        wrong "commit $commit stands on another than ${before:-nothing}, which comes before it: the chain was cut, or the clone is shallow"
    for revision in $(sed 1d parents); do
        git cat-file commit "$revision" >raw 2>/dev/null || wrong "commit $commit is about $revision, which is missing"
        [ "$(git hash-object -t commit --stdin <raw)" = "$revision" ] ||
            wrong "commit $commit is about $revision, whose bytes were changed"
    done
    awk '/^$/ { exit } sub(/^author /, "author\t") || sub(/^committer /, "committer\t")' payload
    fact carries "$(sed 1d parents | tr '\n' ' ')"
}

# The files of an entry: all named with their SHA-256 in entry.json, whose own stands in the message
# of the commit, so that the machine's signature covers it without resting on SHA-1.
read_entry() {
    at="commit $commit"
    git cat-file blob "$commit:entry.json" >entry.json 2>/dev/null || wrong "$at holds no entry.json"
    flatten entry entry.json >flat || wrong "$at: entry.json is not canonical JSON"
    cat flat
    number=$(of entry/number)
    at="entry $number ($commit)"
    id=$(sha256 entry.json | sed 's/ .*//')
    fact id "$id"
    kind=$(of entry/act/kind)
    sed '1,/^$/d' payload >message
    printf 'ledger %s: %s\n\nentry-sha256: %s\n' "$number" "$kind" "$id" | cmp -s - message ||
        wrong "$at: the signed message does not name the SHA-256 of entry.json"

    git ls-tree --full-tree "$commit" | awk '
        $1 != "100644" || NF != 4 || $4 !~ /^[a-z][a-z_.]*$/ { exit 1 }
        $4 != "entry.json" { print $4 }
    ' >there || wrong "$at holds something that is not a plain file of an entry"
    awk -F '\t' 'sub(/^entry\/files\//, "", $1) { print $1 }' flat >named
    cmp -s named there || wrong "$at: entry.json does not name the files that are there"
    while read -r file; do
        git cat-file blob "$commit:$file" >"files/$file" || wrong "$at: $file is missing"
    done <there
    (cd files && sha256 *) | awk '{ print "entry/files/" $2 "\t\"" $1 "\"" }' | grep -vxFf flat >others &&
        wrong "$at: a file is not the one that entry.json names: $(sed 1q others)"
    { [ -f files/allowed_signers ] && [ -f files/policy.yaml ]; } || wrong "$at lacks allowed_signers or policy.yaml"

    # allowed_signers: as before, and the key that this very entry brings.
    cp before_signers expected
    case $kind:$(of entry/act/change/change) in
    genesis:) enrol git "$(of entry/machine)" "$(of entry/act/machine)" ;;
    policy:enrol) enrol rft-act "$(of entry/act/change/name)" "$(of entry/act/change/key)" ;;
    policy:enrol_machine) enrol git "$(of entry/act/change/name)" "$(of entry/act/change/key)" ;;
    esac || wrong "$at enrols something that is not a name or not a key"
    cmp -s expected files/allowed_signers ||
        wrong "$at: allowed_signers is not the one before, with the key that this entry enrols"

    # policy.yaml: the judge compares it where it may change, but for blanks, quotes and its comment.
    case $kind in
    genesis | policy | registration) fact policy "$(sed 1d files/policy.yaml | tr -d " \t\n\"'")" ;;
    *) cmp -s before_policy files/policy.yaml || wrong "$at changes policy.yaml, and it is of kind $kind" ;;
    esac

    key=$(signed_by git signature payload) ||
        wrong "$at: no enrolled machine key signed the commit, or it was altered afterwards"
    fact machine_key "$key"
    [ -f files/statement.json ] || [ -f files/statement.sig ] || { fact judge ""; return 0; }
    { [ -f files/statement.json ] && [ -f files/statement.sig ]; } ||
        wrong "$at has a statement without a signature, or a signature without a statement"
    flatten said files/statement.json >said || wrong "$at: statement.json is not canonical JSON"
    cat said
    fact statement "$(sha256 files/statement.json | sed 's/ .*//')"
    key=$(signed_by rft-act files/statement.sig files/statement.json) ||
        wrong "$at: no enrolled person's key signed the statement, or it was altered afterwards"
    fact person_key "$key"
    fact judge ""
}

# == judge =========================================================================================
# F is the entry, by path. What people and entries have come to stands in the other arrays:
#   roles[name], keys_of[name], holder[key]           people
#   machine[name], machine_of[key]                    machines
#   rules[model SUBSEP rule], model DEFAULT           rules; models[model] where it has its own
#   requests[n SUBSEP path], approvals[n], dirty[n]   requests: their facts; entries that approve, override
#   champion[model], promoted[n], replaced[n], id[n]  what is served: the entry of its promotion
#   looks[n SUBSEP path], look_of[what], most[test]   looks at test sets; thresholds[model]
#   at[test], what_at, terms_at[test SUBSEP i]        registrations at a test set; the policy's terms then
#   first_at, price_of, least_price[what]             of a look: the first of these, and what it spends
#   opened[test], erased[test or list]   retired test sets: the entry that retired them
#   rejected[model SUBSEP prompt SUBSEP weights]      the rejection that holds
#   grounds[n]                                        the entries that an entry rests on; for these:
#   enrolled[name or key], ruled[model], lifted[...]  the last entry that enrolled, set rules, lifted
cat >judge.awk <<'EOJ'
function fail(why) {
    print "WRONG: " (started ? "entry " F["entry/number"] ": " : "") why
    failed = 1
    exit 1
}
function need(so, otherwise) { if (!so) fail(otherwise) }
function text(path) { return path in F ? inner(F[path]) : "" }
function inner(quoted) { return quoted ~ /^"/ ? substr(quoted, 2, length(quoted) - 2) : "" }
function shown(words) { gsub(/[^ -~]/, "?", words); return words }
function seconds(time,    y, m, d, last_day) {  # since 1970
    y = substr(time, 1, 4) + 0; m = substr(time, 6, 2) + 0; d = substr(time, 9, 2) + 0
    last_day = substr("312831303130313130313031", 2 * m - 1, 2) + (m == 2 && !(y % 4) && (y % 100 || !(y % 400)))
    need(time ~ /^2[0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]Z$/ && m >= 1 && m <= 12 && \
        d >= 1 && d <= last_day && substr(time, 12, 2) + 0 < 24, "no time: " shown(time))
    if (m < 3) { y--; m += 12 }
    d += 365 * y + int(y / 4) - int(y / 100) + int(y / 400) + int((153 * m - 457) / 5)
    return (d - 719469) * 86400 + substr(time, 12, 2) * 3600 + substr(time, 15, 2) * 60 + substr(time, 18, 2)
}
function has(who, role) { return index("," roles[who] ",", "," role ",") > 0 }
function decides(who) { return who in roles && (has(who, "owner") || has(who, "approver")) }
function owners(    who, count) { for (who in roles) count += has(who, "owner"); return count + 0 }
function count_of(array,    each, count) { for (each in array) count++; return count + 0 }
function rule(model, name) { return rules[(model in models ? model : DEFAULT) SUBSEP name] }
function same(one, other,    path, rest) {  # every value below one path is below the other, too
    for (path in F) {
        rest = index(path, one "/") == 1 ? substr(path, length(one) + 1) : ""
        if (rest != "" && F[path] != (other rest in F ? F[other rest] : "")) return 0
    }
    return 1
}

# -- who -------------------------------------------------------------------------------------------
function of_machine(    name, key) {
    name = text("entry/machine"); key = F["machine_key"]
    if (kind == "genesis") { need(key == F["new_key"], "another key signed it than the machine that it names"); return }
    if (change == "enrol_machine" && text("entry/act/change/name") == name && F["new_key"] == key) return
    need(name in machine && machine[name] == key, "machine " shown(name) " is not enrolled with the key that signed it")
    rests_on(enrolled[key])
}
function of_person(    time) {  # sets `person`, to "" where nobody said anything
    person = ""
    if (!("person_key" in F)) return
    if (F["person_key"] in holder) { person = holder[F["person_key"]]; rests_on_person(person, F["person_key"]) }
    else if (!had_owner && change == "enrol" && F["person_key"] == F["new_key"]) person = text("entry/act/change/name")
    need(person != "", "its statement is signed with a key that is nobody's at this point: " F["person_key"])
    time = text("entry/time")
    need(text("said/ledger") == genesis, "its statement was signed for another ledger")
    need(!(F["statement"] in statements), "its statement stands in the ledger already: it counts once")
    seconds(text("said/expires"))
    need(seconds(text("said/time")) <= seconds(time) + 300, "its statement is of a later time than the entry")
    need(time <= text("said/expires"), "its statement had expired")
    need(text("said/time") <= text("said/expires"), "its statement expires before it begins")
}
function rests_on(n) { grounds[number] = grounds[number] " " n }
function rests_on_person(who, key) { rests_on(enrolled[who]); rests_on(enrolled[key]) }
function rests_on_lift(n,    what) {  # of a rejection of what request n is about
    what = requests[n, "model"] SUBSEP pair(n)
    if (what in lifted) rests_on(lifted[what])
}
function allowed(n,    model) {  # by the rules, and a lift where there was a rejection
    model = requests[n, "model"] in models ? requests[n, "model"] : DEFAULT
    if (model in ruled) rests_on(ruled[model])
    rests_on_lift(n)
}
function unsigned() {  # a statement counts once, so it must not be used up where nobody asks for one
    need(person == "", "it carries a statement, and takes none")
}
function signed(act, by) {
    need(person != "", "to " act " takes a statement that a person signed, and there is none")
    need(text("said/act") == act, "its statement is to " shown(text("said/act")) ", not to " act)
    if (by == "owner") need(person in roles && has(person, "owner"), person " is not an owner at this point")
    if (by == "approver") need(decides(person), person " is not an approver at this point")
    if (by == "anyone") need(person in roles, person " holds no role at this point")
}

# -- people and rules ------------------------------------------------------------------------------
function apply_change(    name, key, had, each, i, n, list, kept) {
    name = text("entry/act/change/name"); key = F["new_key"]; had = owners()
    if (change == "enrol" || change == "enrol_machine") {
        need(!(key in compromised), "it enrols a key that is marked as compromised")
        need(!(key in holder) || holder[key] == name, "it enrols a key that belongs to somebody else")
        need(!(key in machine_of), "it enrols a key that belongs to a machine")
        need(!(name in machine), shown(name) " is a machine already")
    }
    if (change == "enrol") {
        for (i = 0; ("entry/act/change/roles/" i) in F; i++) each = each "," text("entry/act/change/roles/" i)
        n = split("owner approver author", list, " ")
        for (i = 1; i <= n; i++) if (index(each ",", "," list[i] ",")) kept = kept (kept == "" ? "" : ",") list[i]
        need(kept != "", "it gives no role")
        roles[name] = kept
        if (!(key in holder)) keys_of[name] = keys_of[name] (keys_of[name] == "" ? "" : ",") key
        holder[key] = name
        enrolled[name] = enrolled[key] = number
    } else if (change == "enrol_machine") {
        need(!(name in roles), shown(name) " is a person already")
        machine[name] = key
        machine_of[key] = name
        enrolled[key] = number
    } else if (change == "remove") {
        need(name in roles, "it removes " shown(name) ", whom nobody enrolled")
        n = split(keys_of[name], list, ",")
        for (i = 1; i <= n; i++) delete holder[list[i]]
        delete roles[name]; delete keys_of[name]
    } else if (change == "remove_machine") {
        need(name in machine, "it removes machine " shown(name) ", which nobody enrolled")
        delete machine_of[machine[name]]
        delete machine[name]
    } else if (change == "thresholds") {
        set_thresholds(text("entry/act/change/model"), text("entry/act/change/settings"))
        thresholds_by[text("entry/act/change/model")] = number
    }
    else if (change == "clocks") {
        clocks = text("entry/act/change/until")
        seconds(clocks)  # fails for what is not a time
    }
    else if (change == "rules") set_rules(text("entry/act/change/model"), F["entry/act/change/model"] != "null")
    else if (change == "compromised") {
        key = text("entry/act/change/key")
        if (!(key in compromised) || F["entry/act/change/since"] + 0 < compromised[key])
            compromised[key] = F["entry/act/change/since"] + 0
        if (key in machine_of) { delete machine[machine_of[key]]; delete machine_of[key] }
        if (key in holder) {
            name = holder[key]; delete holder[key]
            n = split(keys_of[name], list, ","); kept = ""
            for (i = 1; i <= n; i++) if (list[i] != key) kept = kept (kept == "" ? "" : ",") list[i]
            keys_of[name] = kept
            if (kept == "") { delete roles[name]; delete keys_of[name] }
        }
    } else fail("no such change of people or rules: " shown(change))
    need(!had || owners(), "it leaves no owner")
    need(count_of(machine), "it leaves no machine")
    had_owner = had_owner || owners()
}
function set_rules(model, own,    at) {
    at = "entry/act/change/rules/"
    if (own) models[model] = 1
    else model = DEFAULT
    ruled[model] = number
    rules[model, "approvers"] = F[at "approvers"] + 0
    rules[model, "four_eyes"] = F[at "four_eyes"] == "true"
    rules[model, "approval_days"] = F[at "approval_days"] + 0
    rules[model, "request_days"] = F[at "request_days"] + 0
    need(rules[model, "approvers"] >= 1, "it asks for no approver")
    if (model !~ /^[ -~]*$/ || model ~ /\\/ || length(model) > 100) unreadable = 1
}
function set_thresholds(model, settings) {
    thresholds[model] = settings
    if (model !~ /^[ -~]*$/ || model ~ /\\/ || length(model) > 100) unreadable = 1
}
function first_rules() {
    rules[DEFAULT, "approvers"] = 1; rules[DEFAULT, "four_eyes"] = 0
    rules[DEFAULT, "approval_days"] = 7; rules[DEFAULT, "request_days"] = 30
}
function compare_policy(    found, made) {
    if (unreadable) { unread++; return }
    found = F["policy"]; made = policy()
    need(number_free(found) == number_free(made), "policy.yaml does not say what the entries up to it make of it:\n" \
        shown(found) "\n" shown(made))
}
function policy(    made, names, n, i, part) {  # policy.yaml as we would write it, without blanks and quotes
    made = (clocks == "" ? "" : "clocks:" clocks) "compromised:" mapping(compromised) "machines:" mapping(machine) "models:"
    n = sorted(models, names)
    for (i = 1; i <= n; i++) { part = names[i]; gsub(/["\047 ]/, "", part); made = made part ":" of_rules(names[i]) }
    made = made (n ? "" : "{}") "people:"
    n = sorted(roles, names)
    for (i = 1; i <= n; i++) made = made names[i] ":keys:[" keys_of[names[i]] "]roles:[" roles[names[i]] "]"
    made = made (n ? "" : "{}") "rules:" of_rules(DEFAULT) "thresholds:{"
    n = sorted(thresholds, names)
    for (i = 1; i <= n; i++) {
        part = names[i] ":" thresholds[names[i]]
        gsub(/["\047 \\]/, "", part)
        made = made (i == 1 ? "" : ",") part
    }
    return made "}"
}
function of_rules(model) {
    return "{approval_days:" rules[model, "approval_days"] ",approvers:" rules[model, "approvers"] ",four_eyes:" \
        (rules[model, "four_eyes"] ? "true" : "false") ",request_days:" rules[model, "request_days"] "}"
}
function mapping(array,    names, n, i, made) {
    n = sorted(array, names)
    for (i = 1; i <= n; i++) made = made (i == 1 ? "" : ",") names[i] ":" array[names[i]]
    return "{" made "}"
}
function sorted(array, names,    each, n, i) {
    for (each in array) {
        for (i = ++n; i > 1 && names[i - 1] "" > each ""; i--) names[i] = names[i - 1]
        names[i] = each
    }
    return n + 0
}
function number_free(yaml,    done) {  # 7.0 and 7 are one number
    while (match(yaml, /_days:[-+.0-9e]+/)) {
        done = done substr(yaml, 1, RSTART + 5) (substr(yaml, RSTART + 6, RLENGTH - 6) + 0)
        yaml = substr(yaml, RSTART + RLENGTH)
    }
    return done yaml
}

# -- looks at a test set ---------------------------------------------------------------------------
function judge_registration(    n, model, what, terms, i, least, test) {
    unsigned()
    n = number; model = text("entry/act/model"); test = text("entry/act/test_sha256")
    need(F["entry/act/champion"] == serves(model), "its run would be judged against a champion that is not served")
    looks[n, "model"] = model; looks[n, "champion"] = F["entry/act/champion"]; looks[n, "test"] = test
    looks[n, "list"] = text("entry/act/examples/sha256")
    need(!(test in opened), "its test set was opened before")
    need(!(test in erased) && !(looks[n, "list"] in erased), "the list of its test set was erased")
    for (i = 0; ("entry/act/candidates/" i "/0") in F; i++)
        candidates[n, text("entry/act/candidates/" i "/0"), text("entry/act/candidates/" i "/1")] = 1
    need(i == 1 || i == 2, "it names no candidates")
    what = model SUBSEP F["entry/act/champion"] SUBSEP test SUBSEP in_order(i) SUBSEP \
           text("entry/act/grader_sha256") SUBSEP text("entry/act/measured_sha256")
    terms = text("entry/act/settings") SUBSEP text("entry/act/examples/sha256")
    need(!((what, terms) in registered), "this very look is registered already")
    least = what in look_of ? look_of[what] : most[test] + 1
    need(F["entry/act/look"] + 0 >= least, "it is look " least " at its test set, and says less")
    need(F["entry/act/look"] + 0 <= looks_allowed(text("entry/act/settings")), "all looks at its test set are spent")
    if (model in thresholds_by) judge_level(n, what, test, least, gate_of(thresholds[model]))
    else judge_level(n, what, test, least, gate_of(text("entry/act/settings")))
    if ("entry/act/level" in F) registered[what, terms] = 1
    if (!(what in look_of) || F["entry/act/look"] + 0 < look_of[what]) look_of[what] = F["entry/act/look"] + 0
    if (F["entry/act/look"] + 0 > most[test] + 0) most[test] = F["entry/act/look"] + 0
    if (model in thresholds_by) rests_on(thresholds_by[model])
    else { set_thresholds(model, text("entry/act/settings")); thresholds_by[model] = n }
    by_policy[n] = thresholds[model] == text("entry/act/settings")
}
function judge_level(n, what, test, look, in_force,    settings, i, each, spent, alpha, price, most_level) {
    # what earlier looks at this test set took of alpha is spent; the rest is for the looks that are left
    settings = gate_of(text("entry/act/settings")); alpha = alpha_of(settings)
    price = "entry/act/level" in F ? 2 * F["entry/act/level"] : alpha / looks_allowed(text("entry/act/settings"))
    if (!("entry/act/level" in F)) need(!levels_since, "it does not say what it spends of alpha, as looks do since entry " levels_since)
    else {
        for (i = 1; i <= at[test] + 0; i++) is_no_looser(settings, terms_at[test, i])
        for (i = 1; i <= at[test] + 0; i++) {
            each = what_at[test, i]
            if (first_at[each] == i && each != what && (!(what in first_at) || i < first_at[what])) spent += price_of[each]
        }
        most_level = (alpha - spent) / (looks_allowed(text("entry/act/settings")) - look + 1) / 2
        most_level = int(most_level * 1e12 + 0.5) / 1e12
        need(most_level > 1e-9, "nothing is left of alpha for a look at its test set")
        if (what in least_price && least_price[what] / 2 < most_level) most_level = least_price[what] / 2
        need(F["entry/act/level"] + 0 <= most_level * (1 + 1e-9), "it asks at a level above " most_level)
        if (!levels_since) levels_since = n
    }
    i = ++at[test]; terms_at[test, i] = in_force; what_at[test, i] = what
    if (!(what in first_at)) first_at[what] = i
    if (!(what in price_of) || price > price_of[what]) price_of[what] = price
    if (!(what in least_price) || price < least_price[what]) least_price[what] = price
}
function gate_of(settings) {  # section gate, the last of the two
    gsub(/["\\]/, "", settings)
    return match(settings, /[{,]gate:/) ? substr(settings, RSTART + 1) : ""
}
function alpha_of(gate) { return term(gate, "alpha") == "" ? 0.05 : term(gate, "alpha") + 0 }
function term(gate, key) {  # its value, as written; empty where there is none
    if (!match(gate, "[{,]" key ":")) return ""
    gate = substr(gate, RSTART + RLENGTH)
    if (match(gate, /^(\[[^]]*\]|\{[^}]*\})/) || match(gate, /^[^,}]*/)) return substr(gate, 1, RLENGTH)
}
function is_no_looser(now, then,    i, count, keys, key, a, b, stricter) {
    count = split("alpha max_greedy_loss max_calls_p95_increase max_tokens_increase max_turns_p95_increase " \
        "max_unreadable_increase max_abstention_increase max_unscored_increase max_hack_rate max_slice_loss min_slice " \
        "max_unscored_share max_latency_increase min_gain require_hack_source latency_decides require_drift prices " \
        "num_bootstrap seed", keys, " ")
    for (i = 1; i <= count; i++) {
        key = keys[i]; a = term(now, key); b = term(then, key)
        if (a == b || a == "" || b == "") continue
        stricter = 0
        if (i <= 13) stricter = a != "null" && (b == "null" || a + 0 < b + 0)
        else if (i == 14) stricter = a + 0 > b + 0
        else if (i <= 16) stricter = a == "true"
        else if (i == 17) stricter = length(a) < length(b) && (a == "[]" || index(b, substr(a, 2, length(a) - 2)))
        need(stricter, "at an earlier look at its test set, the policy had a stricter " key)
    }
}
function judge_opened(    n, model, test) {
    unsigned()
    n = F["entry/act/registration"]; model = text("entry/act/model"); test = text("entry/act/test_sha256")
    if (n != 0) {
        need((n, "model") in looks && looks[n, "model"] == model && looks[n, "test"] == test && \
            looks[n, "list"] == text("entry/act/examples/sha256"), "it names no look at this test set")
        rests_on(n)
    }
    need(!((model, text("entry/act/run"), test) in opened_run), "this run's test set was opened before")
    need(text("entry/act/reason") != "", "it gives no reason")
    opened_run[model, text("entry/act/run"), test] = number
    if (!(test in opened)) opened[test] = number
}
function judge_erasure(    n) {
    n = F["entry/act/registration"]
    need((n, "model") in looks && looks[n, "model"] == text("entry/act/model"), "it names no look")
    need(!(looks[n, "test"] in erased) && !(looks[n, "list"] in erased), "that list was erased before")
    need(text("entry/act/reason") != "", "it gives no reason")
    rests_on(n)
    if (!had_owner) unsigned()  # nobody is there yet who could sign
    else {
        signed("erase", "owner")
        need(text("said/model") == text("entry/act/model") && text("said/registration") == id[n] && \
            text("said/reason") == text("entry/act/reason"), "its statement is about another erasure")
    }
    erased[looks[n, "test"]] = erased[looks[n, "list"]] = number
}
function looks_allowed(settings) {
    gsub(/["\\]/, "", settings)
    return match(settings, /[{,]looks:[0-9]+/) ? substr(settings, RSTART + 7, RLENGTH - 7) + 0 : 0
}
function in_order(count,    one, other) {  # the candidates are a set
    one = text("entry/act/candidates/0/0") "," text("entry/act/candidates/0/1")
    other = text("entry/act/candidates/1/0") "," text("entry/act/candidates/1/1")
    if (count == 1 || one == other) return one
    return one < other ? one ";" other : other ";" one
}
function look_was_registered(n,    look) {
    look = F["entry/act/registration"]
    rests_on(look)
    need((look, "model") in looks && looks[look, "model"] == requests[n, "model"], "it rests on no registered look")
    need(looks[look, "champion"] == requests[n, "champion"], "its look was a comparison with another champion")
    need(looks[look, "test"] == requests[n, "test_sha256"], "its look was at another test set")
    need((look SUBSEP pair(n)) in candidates, "its look was at another prompt or other weights")
    need(!(looks[look, "test"] in opened), "its test set was opened before it")
    need(by_policy[look], "its run had other thresholds than the policy held")
}

# -- requests, and what people say about them ------------------------------------------------------
function pair(n) {  # prompt and weights: what a rejection holds for
    return requests[n, "prompt_sha256"] SUBSEP (requests[n, "weights_sha256"] != "" ? requests[n, "weights_sha256"] : \
        "base " requests[n, "base_sha256"])
}
function not_rejected(n,    what) {
    what = requests[n, "model"] SUBSEP pair(n)
    if (what in rejected) fail("this prompt and these weights are rejected, by entry " rejected[what])
}
function known(n, model) {
    need(n == 0 || (n in promoted && promoted[n] == model), "entry " n " is not a promotion of " shown(model))
}
function serves(model) { return model in champion ? champion[model] : 0 }
function about(path,    n) {  # the request that it is about, which must be one of its model
    n = F[path]
    need((n, "model") in requests && requests[n, "model"] == text("entry/act/model"), \
        "there is no such request: " shown(n))
    return n
}
function judge_request(    n, path, name) {
    n = number
    if (person != "") {
        signed("start", "anyone")
        need(text("said/run") == text("entry/act/key") && text("said/model") == text("entry/act/model"), \
            "its statement is about the start of another run")
    }
    for (path in F) if (index(path, "entry/act/content/") == 1) {
        name = substr(path, 19)
        requests[n, name] = text(path)
        contents[n, name] = F[path]
        names_of[name] = 1
    }
    requests[n, "model"] = text("entry/act/model")
    requests[n, "expires"] = text("entry/act/expires")
    requests[n, "champion"] = F["entry/act/champion"]
    requests[n, "edits"] = text("entry/act/edits_sha256")
    requests[n, "revision"] = text("entry/act/revision")
    requests[n, "run"] = text("entry/act/run")
    proven[n] = person != ""
    starter[n] = person != "" ? person : name_from(text("entry/act/started_by"))
    known(requests[n, "champion"], requests[n, "model"])
    look_was_registered(n)
    not_rejected(n)
    allowed(n)
    need(seconds(requests[n, "expires"]) <= later(text("entry/time"), rule(requests[n, "model"], "request_days")), \
        "it would wait longer than the rules let it")
}
function name_from(words) {  # a name in Git becomes one of ours: Ada Lovelace is ada-lovelace
    gsub(/\\u[0-9a-f][0-9a-f][0-9a-f][0-9a-f]|\\./, " ", words)
    words = tolower(words)
    gsub(/[^a-z0-9._@+-]+/, "-", words); gsub(/^[-._@+]+|[-._@+]+$/, "", words)
    words = substr(words, 1, 40)
    return words == "" ? "someone" : words
}
function same_request(n,    name) {
    need(text("said/request") == id[n], "its statement is about another request")
    for (name in names_of) if ((n, name) in contents)
        need((("said/content/" name) in F ? F["said/content/" name] : "") == contents[n, name], \
            "its statement is about other content: " name " differs")
    need(text("said/model") == text("entry/act/model"), "its statement is about another model")
}
function judge_approval(    n, i) {
    n = about("entry/act/request")
    signed("approve", "approver")
    approvable(n)
    same_request(n)
    need(!is_own(n, person), "four eyes are the rule, and " person " started the run")
    count_approvals(n, text("entry/time"))
    need(!(person in counted), person " approved this request already")
    hear()
    need(seconds(text("entry/time")) <= end(n, number), "by the rules its statement counts no more")
    approvals[n] = approvals[n] " " number
}
function approvable(n) {
    need(requests[n, "champion"] == serves(requests[n, "model"]), \
        "its run was judged against a champion that is not served")
    need(text("entry/time") <= requests[n, "expires"], "the request had expired")
    not_rejected(n)
    rests_on(n)
    allowed(n)
}
function hear() {  # keep what somebody said about a request
    by[number] = person; with[number] = F["person_key"]; under[number] = genesis
    from[number] = text("said/time"); until[number] = seconds(text("said/expires"))
}
function end(n, said,    ruled) {  # until when it counts: as it says, or less, by the rules
    ruled = later(from[said], rule(requests[n, "model"], "approval_days"))
    return until[said] < ruled ? until[said] : ruled
}
function later(time, days) { return int(seconds(time) + days * 86400 + 0.0000005) }
function stands(n, said, time,    who) {  # they have the key still, and the ledger was not restarted
    who = by[said]
    return with[said] in holder && holder[with[said]] == who && under[said] == genesis && seconds(time) <= end(n, said)
}
function has_override(n, time,    list, i, found) {
    for (i = split(dirty[n], list, " "); i > 0; i--)
        if (stands(n, list[i], time) && has(by[list[i]], "owner") && !is_own(n, by[list[i]])) {
            found = 1
            rests_on(list[i]); rests_on_person(by[list[i]], with[list[i]])
        }
    return found
}
function is_own(n, who) { return rule(requests[n, "model"], "four_eyes") && who == starter[n] }
function count_approvals(n, time,    list, i, length_of, who) {
    # Sets `counting`, the approvals that count now: one of each person who may still approve.
    split("", counted)
    counting = ""; num_counting = 0
    length_of = split(approvals[n], list, " ")
    for (i = 1; i <= length_of; i++) {
        who = by[list[i]]
        if (stands(n, list[i], time) && decides(who) && !is_own(n, who) && !(who in counted)) {
            counted[who] = 1; num_counting++; counting = counting " " list[i]
            if (kind == "promotion") { rests_on(list[i]); rests_on_person(who, with[list[i]]) }
        }
    }
}
function judge_promotion(    n, model, needed, named, i) {
    unsigned()
    n = about("entry/act/request"); model = text("entry/act/model")
    need(requests[n, "champion"] == serves(model), "its run was judged against a champion that is not served")
    need(F["entry/act/before"] == serves(model), "it replaces a champion that is not served")
    not_rejected(n)
    rests_on(n)
    allowed(n)
    need(text("entry/time") <= requests[n, "expires"], "the request had expired")
    count_approvals(n, text("entry/time"))
    needed = rule(model, "approvers") + (rule(model, "four_eyes") && !proven[n])
    need(num_counting >= needed, "the request has " num_counting " of " needed " approvals that count")
    for (i = 0; ("entry/act/approvals/" i) in F; i++) named = named " " F["entry/act/approvals/" i]
    need(named == counting, "it names other approvals than those that count:" counting)
    need(requests[n, "edits"] == "" || has_override(n, text("entry/time")), \
        "its run had uncommitted edits, and no owner took the responsibility")
    need(text("entry/act/weights_signature") == text("entry/files/model.sig"), \
        "model.sig is not the signature that it names")
    approvals[n] = ""; asked[number] = n
    promoted[number] = model; replaced[number] = F["entry/act/before"]; champion[model] = number
}
function judge_rollback(    model, now, to) {
    model = text("entry/act/model"); now = serves(model); to = F["entry/act/to"]
    signed("rollback", "approver")
    need(now != 0, "there is nothing to return to")
    need(F["entry/act/before"] == now, "it withdraws a champion that is not served")
    known(to, model)
    need(to == replaced[now], "it returns to another champion than the one before")
    need(text("said/model") == model && text("said/champion") == id[now], "its statement is about another rollback")
    need(text("said/to") == (to == 0 ? "" : id[to]), "its statement is to return to another champion")
    if (to != 0) rests_on(to)
    if (to in asked) { not_rejected(asked[to]); rests_on_lift(asked[to]) }
    champion[model] = to
}
function judge_genesis() {
    unsigned()
    if (number == 1) {
        need(text("entry/act/restarts") == "", "it restarts a ledger, which is missing")
        first_rules()
    } else {  # a restart: people and machines start anew; all else goes on
        need(text("entry/act/restarts") == last "", "a ledger has one genesis, and this restarts nothing before it")
        need(text("entry/act/reason") != "", "a restart needs a reason")
        need(!(F["new_key"] in compromised), "its machine has a key that is marked as compromised")
        restarts++
        split("", roles); split("", keys_of); split("", holder); split("", machine); split("", machine_of)
        had_owner = 0
    }
    genesis = F["id"]
    enrolled[F["new_key"]] = number
    machine[text("entry/machine")] = F["new_key"]; machine_of[F["new_key"]] = text("entry/machine")
}

# -- one entry -------------------------------------------------------------------------------------
function carried() {
    if (kind == "request") return requests[number, "edits"] == "" ? requests[number, "revision"] " " : ""
    return kind == "override" ? requests[F["entry/act/request"], "revision"] " " : ""
}
function judge(    n, what) {
    started = 1
    number = F["entry/number"]; kind = text("entry/act/kind")
    change = kind == "policy" ? text("entry/act/change/change") : ""
    id[number] = F["id"]
    need(text("entry/schema") == "agent-rft/ledger/1", "it is of another version: " shown(text("entry/schema")))
    need(number ~ /^[1-9][0-9]*$/ && number == last_number + 1, \
        "it follows entry " last_number + 0 ": one was removed or reordered")
    need(text("entry/previous") == last "", "it names another entry before it than the one that stands there")
    n = text("entry/machine")
    what = sprintf("%s <%s@rft.invalid> %.0f +0000", n, n, seconds(text("entry/time")))
    need(F["author"] == what && F["committer"] == what, "the author or date of its commit is not what the entry says")
    need(text("entry/time") >= last_time, "its time " text("entry/time") " is before that of the entry before")
    of_machine()
    of_person()
    if (kind == "genesis") judge_genesis()
    else if (kind == "policy") {
        if (!had_owner && change == "enrol") {
            need(F["person_key"] == F["new_key"] && text("said/act") == "policy", \
                "the first owner signs for themselves")
            what = ""
            for (n = 0; ("entry/act/change/roles/" n) in F; n++) what = what " " text("entry/act/change/roles/" n)
            need((what " ") ~ / owner /, "the first person must be an owner")
        } else if (!had_owner && change == "thresholds") unsigned()  # nobody is there yet who could sign
        else signed("policy", "owner")
        if (person != "") need(same("entry/act/change", "said/change") && same("said/change", "entry/act/change"), \
            "its statement is about another change")
        apply_change()
    } else if (kind == "registration") judge_registration()
    else if (kind == "opened") judge_opened()
    else if (kind == "erasure") judge_erasure()
    else if (kind == "request") judge_request()
    else if (kind == "approval") judge_approval()
    else if (kind == "rejection") {
        n = about("entry/act/request")
        signed("reject", "approver")
        not_rejected(n)
        same_request(n)
        rejected[requests[n, "model"] SUBSEP pair(n)] = number
        rejections[number] = requests[n, "model"] SUBSEP pair(n)
    } else if (kind == "override") {
        n = about("entry/act/request")
        signed("override", "owner")
        approvable(n)
        need(text("said/overrides/0") == "dirty" && !("said/overrides/1" in F), \
            "its statement names nothing to override")
        need(!is_own(n, person), "four eyes are the rule, and " person " started the run")
        same_request(n)
        hear()
        dirty[n] = dirty[n] " " number
    } else if (kind == "lift") {
        signed("lift", "approver")
        n = F["entry/act/rejection"]
        need(n in rejections && rejections[n] in rejected && rejected[rejections[n]] == n, \
            "entry " shown(n) " is not a rejection that holds")
        need(rejections[n] == text("entry/act/model") SUBSEP text("said/pair/0") SUBSEP text("said/pair/1"), \
            "its statement is about another prompt and weights")
        need(text("said/rejection") == id[n], "its statement is about another rejection")
        delete rejected[rejections[n]]
        lifted[rejections[n]] = number
    } else if (kind == "promotion") judge_promotion()
    else if (kind == "rollback") judge_rollback()
    else if (kind == "reconcile") unsigned()
    else fail("no such kind of entry: " shown(kind))
    need(F["carries"] == carried(), "its commit does not carry the revision of the run that it is about, or another")
    if (kind == "genesis" || kind == "policy" || kind == "registration") compare_policy()

    if ("statement" in F) statements[F["statement"]] = number
    machine_at[number] = F["machine_key"]; person_at[number] = F["person_key"]
    last_number = number; last = F["id"]; last_time = text("entry/time")
    what = kind == "policy" ? change " " text("entry/act/change/name") : text("entry/act/model")
    if (kind == "request" || kind == "opened") what = what " run " text("entry/act/run")
    if (kind == "erasure") what = what " look " F["entry/act/registration"]
    if ("entry/act/request" in F) what = what " request " F["entry/act/request"]
    if (kind == "rollback") what = what " to " F["entry/act/to"]
    if (person == "") person = "-"
    printf "%5d  %s  %-10s  %s  %s  %s\n", number, last_time, kind, text("entry/machine"), person, shown(what)
    if (kind == "genesis" && number > 1)
        print "RESTARTED: the owners of the entries above had no say in this and what follows. Ask them."
    split("", F)
    started = 0
}

BEGIN { FS = "\t"; DEFAULT = "\"" }  # a quote alone: no model has such a name
$1 == "wrong" { fail($2) }
$1 == "finished" { finished = 1; next }
$1 == "judge" { judge(); next }
{ F[$1] = $2 }

END {
    if (failed) exit 1
    if (!finished) { print "WRONG: the chain could not be read to its end, which is not a fault of an entry."; exit 1 }
    for (n = 1; n <= last_number; n++) {
        bad = ground = ""
        if (machine_at[n] in compromised && n >= compromised[machine_at[n]]) bad = machine_at[n]
        if (person_at[n] in compromised && n >= compromised[person_at[n]]) bad = person_at[n]
        for (i = split(grounds[n], list, " "); i > 0; i--)
            if (list[i] in key_compromise && (ground == "" || list[i] + 0 < ground)) ground = list[i] + 0
        if (bad != "") key_compromise[n] = "signed with key " bad ", compromised since entry " compromised[bad]
        else if (ground != "") {
            bad = key_compromise[ground]; sub(/^rests on/, "and that on", bad)
            key_compromise[n] = "rests on entry " ground ", " bad
        }
        if (n in key_compromise) print "DOUBTFUL: entry " n ": " key_compromise[n]
    }
    if (unread) print "policy.yaml was not compared " unread " times: a model has a name that this script cannot read."
    if (wanted != "" && genesis "" != wanted "") {
        print "WRONG: the ledger " (restarts ? "was restarted with" : "begins with") " genesis " genesis ", not with " \
            wanted ". Ask its owners."
        exit 1
    }
    if (wanted == "") print "Genesis " genesis ": compare it with the one that you know."
    print "OK: " last_number " entries, the last is " last (restarts ? "; RESTARTED " restarts " times" : "")
}
EOJ

facts | awk -v wanted="$genesis" -f judge.awk
