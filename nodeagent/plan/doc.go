// Package plan decides what a node does next with one volume. It is pure: what
// is wanted, what is recorded and what is seen go in, steps and reasons come
// out.
//
// Each side effect (staging, each publication, growing) has three truths:
// absent, uncertain, done. The record becomes uncertain before a call and done
// or absent after it, so a crash in between leaves uncertain, and uncertain
// owes either the same call again or its inverse.
//
// Two rules outrank the rest. Teardown comes before set-up. And nothing is torn
// down for lack of information: a publication goes only on positive evidence
// (see Evidence), and staging only when no publication is left.
package plan
