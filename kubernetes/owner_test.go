// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// What a claim of a person leaves is found by the next one of its owner, each file where it was, and by no
// other namespace, user or owner.
// Promise P220 (pods): The next claim of a namespace finds what a claim left for its owner, each
// file where it was. Another namespace, or a later one of the same name, does not. A claim that
// ends with its pod, as those of templates do, has no owner.
// Promise P276.
func TestOwnersContentIsFoundByItsNextClaimInItsNamespaceOnly(t *testing.T) {
	b := start(t, pool)
	b.ready()
	owned := func(more string) string {
		return `{"apiVersion":"prezero.io/v1alpha1","kind":"Loan","owner":"cache","keep":"10m"` + more + `}`
	}
	finds := func(namespace, name, parameters string, wanted ...byte) {
		t.Helper()
		one := b.api.add(claim(namespace, name, parameters, page, page))
		paths, err := b.prepare(one)
		must(t, err)
		for nth, path := range paths {
			holds(t, path, wanted[nth])
		}
		must(t, b.unprepare(one))
	}
	first := b.api.add(claim("team-a", "first", owned(""), page, page))
	paths, err := b.prepare(first)
	must(t, err)
	for nth, path := range paths {
		holds(t, path, 0)
		soil(t, path, byte(nth+1))
	}
	must(t, b.unprepare(first))
	if !b.isClean() {
		t.Fatal("something is left")
	}
	if _, err := os.Stat(paths[0]); err == nil {
		t.Fatal("its path leads to it still")
	}
	finds("team-a", "first", owned(""), 1, 2)
	for _, other := range [][3]string{
		{"team-b", "first", owned("")},
		{"team-a", "user", owned(`,"uid":1000`)},
		{"team-a", "nobody", ""},
		{"team-a", "other", `{"apiVersion":"prezero.io/v1alpha1","kind":"Loan","owner":"Cache","keep":"1s"}`},
	} {
		finds(other[0], other[1], other[2], 0, 0)
	}
	b.kill(&b.driver)
	b.kill(&b.daemon)
	b.startDaemon()
	b.startDriver()
	b.ready()
	finds("team-a", "second", owned(""), 1, 2)
	// A namespace of that name which others made has nothing of it.
	b.api.makeAnew("team-a")
	finds("team-a", "anew", owned(""), 0, 0)
	// One more while it is lent has memory of its own.
	second := b.api.add(claim("team-a", "second", owned(""), page, page))
	_, err = b.prepare(second)
	must(t, err)
	finds("team-a", "third", owned(""), 0, 0)
	must(t, b.unprepare(second))
}

// Kept content holds memory of its namespace and counts there. Content that no pod had is dropped.
// Promise P222 (pods): Kept content counts in its namespace; a refused claim adds nothing to it.
func TestKeptContentCountsInItsNamespaceAndUnusedLoansAreNotKept(t *testing.T) {
	b := start(t, pool+"[agent]\nquota_of = { team-a = \"4M\" }\n")
	b.ready()
	const owned = `{"apiVersion":"prezero.io/v1alpha1","kind":"Loan","owner":"cache","keep":"10m"}`
	isRefused := func(one *resourceapi.ResourceClaim) {
		t.Helper()
		if _, err := b.prepare(one); err == nil || !strings.Contains(err.Error(), `quota of namespace "team-a"`) {
			t.Errorf("%s: %v", one.Name, err)
		}
		must(t, b.unprepare(one))
	}
	goes := func(one *resourceapi.ResourceClaim, wanted byte) string {
		t.Helper()
		var paths []string
		// A returned loan counts until its memory is unused, and the kubelet tries again.
		b.eventually(one.Name+" is prepared", func() bool {
			var err error
			paths, err = b.prepare(one)
			return err == nil
		})
		for _, path := range paths {
			holds(t, path, wanted)
		}
		return paths[0]
	}
	// Of three pages that were asked for the first two were had for a moment.
	isRefused(b.api.add(claim("team-a", "three", owned, page, page, page)))
	plain := b.api.add(claim("team-a", "plain", "", 2*page))
	goes(plain, 0)
	must(t, b.unprepare(plain))
	// A page of its own is kept, and another one is left of the quota.
	first := b.api.add(claim("team-a", "first", owned, page))
	soil(t, goes(first, 0), 7)
	must(t, b.unprepare(first))
	isRefused(plain)
	others := b.api.add(claim("team-b", "plain", "", 2*page))
	goes(others, 0)
	must(t, b.unprepare(others))
	// It is found, given back with all else as a claim is refused, and found again.
	isRefused(b.api.add(claim("team-a", "again", owned, page, page, page)))
	goes(b.api.add(claim("team-a", "next", owned, page)), 7)
}
