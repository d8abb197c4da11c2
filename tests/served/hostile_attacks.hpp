// The attacks of hostile-verbs. Each is a round of a child, which may crash, but for use_threads() and fork_children().
#pragma once

namespace pollcore::test::hostile {

// hostile_lifetimes.cc
void use_freed_objects();
/// The timer or a second thread ends the process in the middle of a call.
void exit_in_a_call();
void exhaust_objects();
/// Any end, with requests in flight.
void end_somehow();
/// The parent sends itself messages all the time, and checks them. Its children use what it has made, and end in any
/// way.
void fork_children(bool init);

// hostile_memory.cc
void close_all_descriptors();
void unmap_what_is_shared();
/// Writes anywhere into the rings, while it posts and polls.
void garble_rings();
void unload_the_library();

// hostile_requests.cc
/// Requests with random keys, addresses, lengths and destinations.
void post_wild_requests();
/// Threads that know nothing of each other use the same objects, and end them.
void race_with_itself();
/// Threads that use the same objects and end none: all of that is allowed, so nothing may crash.
void use_threads();
/// Channels whose events nobody takes or acknowledges, or whose descriptors are closed.
void misuse_events();

}  // namespace pollcore::test::hostile
