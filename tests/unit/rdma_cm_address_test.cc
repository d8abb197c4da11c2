// rdma_cm addresses: how they are parsed and printed, and which are refused.
#include "connect/rdma_cm_address.hpp"

#include <gtest/gtest.h>

#include "pollcore/error.hpp"

namespace pollcore {
namespace {

TEST(RdmaCmAddress, IsPrintedAsItIsRead) {
    for (const std::string text : {"192.0.2.1:7471", "0.0.0.0:0", "127.0.0.1:65535", "[2001:db8::1]:7471", "[::]:1",
                                   "[::1]:0", "[fe80::1%lo]:7471"}) {
        EXPECT_EQ(CmAddress::parse(text).text(), text);
    }
}

TEST(RdmaCmAddress, AnInterfaceMayBeGivenByItsNumber) {
    EXPECT_EQ(CmAddress::parse("[fe80::1%1]:5").text(), "[fe80::1%lo]:5");
}

TEST(RdmaCmAddress, KnowsWildcardAndLinkLocal) {
    EXPECT_TRUE(CmAddress::parse("0.0.0.0:1").is_wildcard());
    EXPECT_TRUE(CmAddress::parse("[::]:1").is_wildcard());
    EXPECT_FALSE(CmAddress::parse("192.0.2.1:1").is_wildcard());
    EXPECT_FALSE(CmAddress::parse("[::1]:1").is_wildcard());
    EXPECT_TRUE(CmAddress::parse("[fe80::1%lo]:1").is_link_local());
    EXPECT_FALSE(CmAddress::parse("[2001:db8::1]:1").is_link_local());
    EXPECT_FALSE(CmAddress().is_wildcard());
}

TEST(RdmaCmAddress, AGidStandsForAnAddress) {
    const std::uint8_t v4[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1};
    EXPECT_EQ(CmAddress::from_gid(v4).text(), "10.77.0.1:0");
    const std::uint8_t v6[16] = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
    EXPECT_EQ(CmAddress::from_gid(v6).text(), "[2001:db8::9]:0");
}

TEST(RdmaCmAddress, WhatIsNoAddressIsRefusedWithAnExample) {
    for (const std::string text : {"",
                                   ":",
                                   "192.0.2.1",
                                   ":7471",
                                   "192.0.2.1:",
                                   "192.0.2.1:x",
                                   "192.0.2.1:-1",
                                   "192.0.2.1:65536",
                                   "192.0.2.1: 7",
                                   "192.0.2.256:7",
                                   "host:7",
                                   "2001:db8::1:7",
                                   "[2001:db8::1]",
                                   "[2001:db8::1:7",
                                   "[]:7",
                                   "[192.0.2.1]:7",
                                   "[fe80::1]:7",
                                   "[fe80::1%]:7",
                                   "[fe80::1%no-such-if]:7",
                                   "[::1]7:7",
                                   "192.0.2.1:+7"}) {
        try {
            (void)CmAddress::parse(text);
            ADD_FAILURE() << "'" << text << "' was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), std::errc::invalid_argument);
            const std::string what = error.what();
            EXPECT_NE(what.find("'" + text + "'"), std::string::npos) << what;
            EXPECT_NE(what.find("192.0.2.1:7471"), std::string::npos) << what;
        }
    }
}

}  // namespace
}  // namespace pollcore
