// Package process starts long-lived child processes so that none outlives its
// parent, and finds those that did anyway.
//
// Three things hold a process tree together. A child dies with its parent
// (PR_SET_PDEATHSIG). A process is known by its pid and its start time, so that
// a pid used again is never mistaken for it. And each child carries a marker in
// its environment, by which a later run finds what an earlier one left.
package process
