"""clicks"""
