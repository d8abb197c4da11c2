// A minimal program that uses the client library.
#include <cstdio>
#include <pollcore/attach.hpp>
#include <pollcore/version.hpp>

int main() {
    pollcore::Session session;
    if (session.try_submit(pollcore::WorkRequest{}) != pollcore::Refusal::session_closed) {
        return 1;
    }
    try {
        const pollcore::Attachment nobody({.path = "/nowhere"});
        return 1;
    } catch (const pollcore::Error&) {
    }
    std::printf("pollcore %s\n", POLLCORE_VERSION);
    return POLLCORE_VERSION == pollcore::kVersion ? 0 : 1;
}
